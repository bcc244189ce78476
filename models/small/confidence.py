"""A language model's trust in its own answer, in place of a judgement whether it knows."""

from typing import Any, ClassVar

from hoptimizer.models.small.base import SmallModel

# The input field that holds how likely the model's own answer is, beside those of the step's signature.
ANSWER_PROBABILITY = "answer_probability"


class Confidence(SmallModel):
    """Judges that a question's answer is known where the model wrote it with some probability or more.

    It has no weights: the probability comes with the answer, which the model writes anyway where it knows it. What is
    learned is the threshold. Where a model does not tell the probability, nothing is known.
    """

    extra_inputs: ClassVar[frozenset[str]] = frozenset({ANSWER_PROBABILITY})

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        probability = inputs[ANSWER_PROBABILITY] or 0.0
        sure = probability >= (self.card.threshold or 0.0)
        return {self.card.output: self.card.labels[int(sure)], "probability": probability}
