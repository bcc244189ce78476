"""Readers, which answer a question from passages or from memory (IRCoT, section 3.2)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dspy

from hoptimizer.programs.program import Program
from hoptimizer.programs.steps.asking import mean_likelihood
from hoptimizer.retrieval import Passage
from hoptimizer.signatures import (
    Answer,
    AnswerWithChain,
    AnswerWithReasoning,
    Read,
    ReadWithChain,
    ReadWithReasoning,
)

ReaderKind = Literal["direct", "cot", "phrase", "none"]
"""How a reader answers: at once, after a chain of thought in a field of its own, at the end of a chain of thought after
"answer is:" (IRCoT's protocol), or not at all."""

_PHRASE = re.compile(r"\banswer is\b\s*:?\s*", re.IGNORECASE)
# What a model says in the place of an answer where it has none. Titles begin alike ("Nowhere in Africa").
_SOURCE = r"(passages?|contexts?|texts?|information|documents?|question)"
_SUBJECT = (
    r"((based on|according to|from) [^,]{1,60},\s*)?"
    r"(((the|this|that|such)\s+)?((exact|correct|specific)\s+)?(it|they|this|that|answer|question|information)"
    r"(\s+to\s+(the|this|that|your)\s+question)?\s+((is|are|was)\s+)?)?"
)
_NO_ANSWER = re.compile(
    _SUBJECT + r"(not|nowhere|cannot be|can['’]t be|could not be)\s+(\w+\s+)?"
    r"(in|given|stated|mentioned|provided|found|available|known|clear|specified|contained|present|here|there|possible|"
    rf"determined|answered|inferred|said)\b(.*\b{_SOURCE}\b.*)?\W*"
    rf"|{_SUBJECT}(unknown|unclear|unavailable|undetermined|unspecified|n/a)(\W.*\b{_SOURCE}\b.*)?\W*"
    rf"|{_SUBJECT}(there is\s+)?((not enough|insufficient)\s+(\w+\s+){{0,2}}(information|evidence|context)|"
    r"no\s+(\w+\s+){0,2}information|no\s+(\w+\s+){0,2}(evidence|context)(?=\s))"
    rf"(\s+(is\s+)?(available|given|provided|found|known)\b.*|\s+(about|on|to|in)\b.*|\W.*\b{_SOURCE}\b.*)?\W*"
    rf"|{_SUBJECT}(unable|impossible|not possible) to (determine|answer|tell|say|know|find|identify|infer)\b.*"
    r"|(sorry,?\s+)?i( am|['’]m)?\s+(do not|don['’]t|not|cannot|can['’]t)\s+(know|sure|certain|tell|say|answer)\b"
    rf"(.*\b(answers?|that|this|{_SOURCE})\b.*)?\W*"
    r"|i (do not|don['’]t) have\s+(\w+\s+){0,3}(information|evidence|context|knowledge)\b.*"
    r"|(none of the|the|these)\s+((given|provided|available)\s+)?(passages?|contexts?|texts?|documents?)\s+"
    r"((provided|given|above)\s+)?(say|says|state|mention|do not|does not|don['’]t|doesn['’]t)\b.*"
    r"|((?!\b(but|though|although|which)\b)[^.!?,;:()–—])*\b(is|are|was|were)(\s+not|n['’]t)\s+(\w+\s+)?"
    rf"(in|given|stated|mentioned|provided|found|available|specified|contained|said)\b[^.!?]*\b{_SOURCE}\W*"
    rf"|there\s+(is|was)\s+no\s+(mention|record|indication)\b.*\b{_SOURCE}\W*"
    r"|(sorry,?\s+)?i((['’]m|\s+(am|was))\s+unable\s+to|\s+(could\s+not|couldn['’]t|cannot|can['’]t))\s+"
    rf"(find|determine|identify|infer|locate)\b.*\b(answers?|that|this|it|{_SOURCE})\W*"
    r"|(can\s?not|can['’]t|could\s+not|unable\s+to)\s+(be\s+)?(determine|answer|infer)(e?d)?\W*",
    re.IGNORECASE | re.DOTALL,
)
_AROUND = "*_`\"'“”‘’[](){}<> \t\n"


def stated_answer(chain: str) -> str | None:
    """The answer that a chain of thought states after "answer is:", the last one where there are several.

    Args:
        chain: one or more sentences.

    Returns:
        The answer without a full stop at its end; ``None`` where there is none, or where the chain says that it is not
        known.

    Example:
        >>> from hoptimizer.programs.reader import stated_answer
        >>> stated_answer("Oslo is in Norway. So the answer is: Norway.")
        'Norway'
        >>> stated_answer("So the answer is: Norway.\\n\\nNote: this is based on passage 2.")
        'Norway'
        >>> stated_answer("The answer is not in the passages.") is None
        True
    """
    *_, last = _PHRASE.split(chain)
    return None if last == chain or declines(last) else _answer(last)


def answer_of(chain: str) -> str:
    """What a chain of thought gives as its answer, or the whole text where it gives nothing (IRCoT, section 3.2)."""
    *_, last = _PHRASE.split(chain)
    return _without_stop(last) if last == chain else _answer(last)


def given_answer(answer: str | None) -> str | None:
    """An answer without spaces around it; ``None`` where there is none, or where the model says that it has none."""
    return None if answer is None or declines(answer) else answer.strip()


def declines(answer: str) -> bool:
    """Whether a model says that it has no answer, or says nothing.

    >>> [declines(answer) for answer in ("", "I don't know.", "Not mentioned in the passages", "**Unknown**")]
    [True, True, True, True]
    >>> [declines(answer) for answer in ("Her birthplace isn't stated in the text.", "I couldn't find the answer")]
    [True, True]
    >>> [declines(answer) for answer in ("Nowhere in Africa", "Not Fade Away", "I Don't Know How She Does It")]
    [False, False, False]
    >>> declines("Oslo, which is not in the passages")
    False
    """
    said = answer.strip(_AROUND)
    return not said or bool(_NO_ANSWER.fullmatch(said))


def _answer(text: str) -> str:
    """What follows the phrase, without notes on further lines."""
    return _without_stop(text.strip().partition("\n")[0])


def _without_stop(text: str) -> str:
    return text.strip().removesuffix(".").strip()


def make_reader(kind: ReaderKind, *, passages: bool) -> dspy.Predict | None:
    """The predictor of a reader; ``None`` for ``none``."""
    signatures = {
        "direct": Read if passages else Answer,
        "cot": ReadWithReasoning if passages else AnswerWithReasoning,
        "phrase": ReadWithChain if passages else AnswerWithChain,
    }
    return None if kind == "none" else dspy.Predict(signatures[kind])


@dataclass(frozen=True)
class Reading:
    """What a reader said.

    Attributes:
        answer: the answer; empty if there is no reader or if it failed.
        text: all that it said: its chain of thought, if there is one, and the answer.
        probability: how likely the language model finds a token of the answer, in the geometric mean, where it was
            asked to tell and does.
    """

    answer: str
    text: str
    probability: float | None = None


async def read(
    program: Program,
    question: str,
    passages: list[Passage] | None = None,
    *,
    sampling: Mapping[str, Any] | None = None,
) -> str:
    """Take the program's ``reader`` step, and give its answer; empty if there is no reader or if it failed.

    Args:
        program: a program whose attribute ``reader`` is a predictor or ``None``.
        question: the question.
        passages: what to read, or ``None`` to answer from memory.
        sampling: how the language model samples, where not as its settings say.
    """
    return (await read_aloud(program, question, passages, sampling=sampling)).answer


async def read_aloud(
    program: Program,
    question: str,
    passages: list[Passage] | None = None,
    *,
    measured: bool = False,
    sampling: Mapping[str, Any] | None = None,
) -> Reading:
    """Like :func:`read`, with all that the reader said.

    Args:
        program: a program whose attribute ``reader`` is a predictor or ``None``.
        question: the question.
        passages: what to read, or ``None`` to answer from memory.
        measured: whether the language model is to tell how likely the answer is.
        sampling: how it samples, where not as its settings say.
    """
    if program.reader is None:
        return Reading("", "")
    inputs: dict[str, Any] = {"question": question}
    if passages is not None:
        inputs["context"] = passages
    prediction = await program.step("reader", measured=measured, sampling=sampling, **inputs)
    if "chain" in prediction:
        text = (prediction.chain or "").strip()
        answer = answer_of(text)
    else:
        answer = (prediction.answer or "").strip()
        text = f"{prediction.get('reasoning') or ''} {answer}".strip()
    return Reading(answer, text, mean_likelihood(prediction.get("logprobs") or (), answer))
