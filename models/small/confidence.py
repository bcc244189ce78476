"""A language model's confidence in its own answer, in place of its judgement of whether it knows."""

from typing import Any, ClassVar

from hoptimizer.models.small.base import SmallModel

# The input field that holds how likely the model's own answer is, beside those of the step's signature.
ANSWER_PROBABILITY = "answer_probability"


class Confidence(SmallModel):
    """Judges that a question's answer is known if the probability with which the model wrote it reaches a threshold.

    It has no weights: the probability comes with the answer, which the model writes in any case where it knows it. Only
    the threshold is learned. Where a model does not tell the probability, nothing counts as known.
    """

    extra_inputs: ClassVar[frozenset[str]] = frozenset({ANSWER_PROBABILITY})

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        probability = inputs[ANSWER_PROBABILITY] or 0.0
        sure = probability >= (self.card.threshold or 0.0)
        return {self.card.output: self.card.labels[int(sure)], "probability": probability}
