"""Asking the model of a step, a small one or a language model whose context may be too short for the prompt."""

import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

import dspy
from dspy.adapters.utils import parse_value
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError, LMError

from hoptimizer.models.failures import refuses_logprobs
from hoptimizer.models.reading import END_OF_THOUGHTS, writable
from hoptimizer.models.small.base import StepModel
from hoptimizer.programs.steps.calls import StepCalls

Asked = tuple[dspy.Prediction, StepCalls, str | None]
"""A prediction, the calls that were made, and why the output can't be used, or ``None``."""

# Models, by name and address, that refused to tell how likely their outputs are.
_refusing: set[tuple[str, str | None]] = set()


async def ask_small_model(
    model: StepModel, signature: type[dspy.Signature], inputs: dict[str, Any]
) -> tuple[dspy.Prediction, str | None]:
    """Ask a small model, and parse its output by the signature's types, as a language model's is.

    Returns:
        The prediction, whose fields are ``None`` if the output can't be used, and why it can't, or ``None``.
    """
    outputs = await model(inputs)
    probability = {"probability": outputs["probability"]} if "probability" in outputs else {}
    try:
        values = {name: parse_value(outputs[name], info.annotation) for name, info in signature.output_fields.items()}
    except (KeyError, ValueError) as error:
        blank = dict.fromkeys(signature.output_fields)
        return dspy.Prediction(**blank, **probability), " ".join(f"unusable output {outputs!r:.200}: {error}".split())
    return dspy.Prediction(**values, **probability), None


def mean_likelihood(tokens: Sequence[tuple[str, float]], text: str) -> float | None:
    """The probability of a token of a text, in the geometric mean, which does not depend on how long the text is.

    What a model writes around the text, as its prompt's format wants it, does not count. If the tokens do not spell the
    text, as where it is escaped, all of them count.

    Args:
        tokens: what the model wrote, each with the logarithm of its probability.
        text: what is looked for in it; where it was written several times, the last one counts.

    Returns:
        The probability; ``None`` without tokens.

    >>> tokens = [("answer", 0.0), (": ", 0.0), ("New", math.log(0.9)), (" York", math.log(0.4)), (".", -1.0)]
    >>> round(mean_likelihood(tokens, "New York"), 2), round(mean_likelihood(tokens, "York"), 2)
    (0.6, 0.4)
    """
    start = "".join(token for token, _ in tokens).rfind(text)
    ends = accumulate(len(token) for token, _ in tokens)
    spelling = [
        logprob
        for (token, logprob), end in zip(tokens, ends, strict=True)
        if start < 0 or (end - len(token) < start + len(text) and end > start)
    ]
    return math.exp(fmean(spelling)) if spelling else None


def _told(prediction: dspy.Prediction) -> list[tuple[str, float]]:
    """The tokens that the model wrote, after its thoughts if it wrote such, with the logarithms of their probabilities.

    They are taken off the prediction, because demonstrations are made from it.
    """
    tokens = (prediction.get("logprobs") or {}).get("content") or []
    if "logprobs" in prediction:
        del prediction["logprobs"]
    thoughts = max((place for place, token in enumerate(tokens, 1) if END_OF_THOUGHTS in token["token"]), default=0)
    return [(token["token"], token["logprob"]) for token in tokens[thoughts:]]


async def ask_language_model(
    predictor: dspy.Predict,
    lm: dspy.LM | None,
    inputs: dict[str, Any],
    demos: list[Any],
    cuttable: list[str],
    options: dict[str, Any],
) -> Asked:
    """Call the predictor, and shorten its prompt for as long as it does not fit the model's context.

    Demonstrations are dropped from the front first, then the longest passage is halved (IRCoT, appendix on prompts).
    The question is never cut.

    Args:
        predictor: the step's predictor.
        lm: the language model to ask; ``None`` for DSPy's configured one.
        inputs: the fields of the signature.
        demos: the demonstrations to show.
        cuttable: the fields that hold a passage or a list of passages.
        options: further arguments of the call.

    Returns:
        The prediction, the calls that were made, and why the output can't be used, or ``None``.
    """
    calls = StepCalls()
    for _ in range(1_000):
        try:
            with calls.heard(lm):
                prediction = await predictor.acall(lm=lm, demos=demos, **options, **inputs)
            return prediction, calls, _without_templates(prediction, predictor.signature)
        except AdapterParseError as error:
            blank = dict.fromkeys(predictor.signature.output_fields)
            return dspy.Prediction(**blank), calls, writable(str(error.message or "unparsable output"))
        except ContextWindowExceededError:
            if demos:
                demos = demos[1:]
            elif not (inputs := _halve_longest(inputs, cuttable)):
                raise
    raise RuntimeError("a prompt could not be made to fit its model's context")


async def ask_measured(
    ask: Callable[[dict[str, Any]], Awaitable[Asked]], lm: dspy.LM | None, options: dict[str, Any]
) -> Asked:
    """Ask as :func:`ask_language_model` does, and have the model tell how likely its output is.

    A server that refuses to tell is asked again without it, and no more for it in this process.

    Args:
        ask: that function, with all its arguments but the options.
        lm: the language model to ask; ``None`` for DSPy's configured one.
        options: further arguments of the call.

    Returns:
        As there; the prediction's ``probability`` is that of its output, or ``None`` if the model does not tell, and
        ``logprobs`` has the output's tokens, each with the logarithm of its probability.
    """
    measured = options | {"config": options.get("config", {}) | {"logprobs": True}}
    model = lm or dspy.settings.lm
    name = model and (model.model, model.kwargs.get("api_base"))
    try:
        prediction, calls, failure = await ask(options if name in _refusing else measured)
    except LMError as error:
        if not refuses_logprobs(error):
            raise
        _refusing.add(name)
        prediction, calls, failure = await ask(options)
    tokens = _told(prediction)
    probability = math.exp(sum(logprob for _, logprob in tokens)) if tokens else None
    # Demonstrations are made from the prediction that DSPy traced: it has the signature's fields alone.
    return dspy.Prediction(**prediction.toDict(), probability=probability, logprobs=tokens), calls, failure


def _without_templates(prediction: dspy.Prediction, signature: type[dspy.Signature]) -> str | None:
    """Make fields ``None`` in which the model repeated their place in the prompt's template, such as ``{answer}``.

    Returns:
        which fields these were, as a failure, or ``None``.
    """
    repeated = [name for name in signature.output_fields if prediction.get(name) == f"{{{name}}}"]
    for name in repeated:
        prediction[name] = None
    return f"the model repeated the template of {', '.join(repeated)}" if repeated else None


def _halve_longest(inputs: dict[str, Any], cuttable: list[str]) -> dict[str, Any]:
    """The inputs with their longest passage cut to its first half; empty if none can be cut.

    Args:
        inputs: a predictor's inputs.
        cuttable: the fields that hold a passage or a list of passages.
    """
    passages = {key: inputs[key] if isinstance(inputs[key], list) else [inputs[key]] for key in cuttable}
    longest = max(
        ((len(text), key, i) for key, texts in passages.items() for i, text in enumerate(texts)), default=(0, "", 0)
    )
    length, key, i = longest
    if length < 2:
        return {}
    # By characters: in many scripts a passage is one word.
    passages[key] = [*passages[key][:i], passages[key][i][: length // 2].rstrip(), *passages[key][i + 1 :]]
    return inputs | {key: passages[key] if isinstance(inputs[key], list) else passages[key][0]}
