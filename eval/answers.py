"""How an answer compares with the right ones.

Every score is the best over all accepted answers, after both sides are normalised as SQuAD does it (Rajpurkar et al.,
2016, section 6.1). Exact match is also that of HotpotQA's, 2WikiMultihopQA's and MuSiQue's evaluation scripts; F1 is
that of SQuAD 2.0, which says what empty answers count, and of MuSiQue's script.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")

# Answers that HotpotQA's script takes as a whole: "no" is no half of "no answer".
_VERDICTS = frozenset({"yes", "no", "noanswer"})


def normalize(text: str | None) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces; empty for ``None``."""
    if text is None:
        return ""
    return " ".join(ARTICLES.sub(" ", str(text).lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """1 where the prediction is one of the answers after normalisation, else 0.

    Example:
        >>> from hoptimizer.eval import exact_match
        >>> exact_match("The Rhine.", ["Rhine", "river Rhine"])
        1.0
    """
    given = normalize(prediction)
    return float(any(given == normalize(answer) for answer in answers))


def f1(prediction: str | None, answers: Sequence[str]) -> float:
    """The best F1 over the answers, between the multi-sets of normalised tokens; 0 to 1.

    Example:
        >>> from hoptimizer.eval import f1
        >>> f1("river Rhine", ["the Rhine"])
        0.6666666666666666
    """
    given = normalize(prediction).split()
    return max((_token_f1(given, normalize(answer).split()) for answer in answers), default=0.0)


def _token_f1(given: list[str], gold: list[str]) -> float:
    if not given or not gold:
        return float(given == gold)
    common = (Counter(given) & Counter(gold)).total()
    return 2 * common / (len(given) + len(gold))


def hotpotqa_f1(prediction: str | None, answers: Sequence[str]) -> float:
    """F1 as HotpotQA's evaluation script has it (Yang et al., 2018), and 2WikiMultihopQA's (Ho et al., 2020).

    It differs from :func:`f1` in two cases: yes, no and "noanswer", on either side, count only where the other side is
    the same, and two empty answers have nothing in common. 2WikiMultihopQA's script takes the best over the answer's
    aliases, which its importer reads into ``answers``.

    Example:
        >>> from hoptimizer.eval.answers import f1, hotpotqa_f1
        >>> f1("no, it is not", ["no"]), hotpotqa_f1("no, it is not", ["no"])
        (0.4, 0.0)
    """
    given = normalize(prediction)
    return max((_hotpotqa_f1(given, normalize(answer)) for answer in answers), default=0.0)


def _hotpotqa_f1(given: str, gold: str) -> float:
    if not given or (given != gold and not _VERDICTS.isdisjoint((given, gold))):
        return 0.0
    return _token_f1(given.split(), gold.split())


def contains(prediction: str | None, answers: Sequence[str]) -> float:
    """1 where the prediction contains one of the answers after normalisation, character by character, else 0.

    It is the exact match of prompts that let a model answer in sentences ("cover exact match").

    Example:
        >>> from hoptimizer.eval.answers import contains
        >>> contains("It flows into the Rhine.", ["the Rhine"])
        1.0
    """
    given = normalize(prediction)
    return float(any(_within(normalize(answer), given) for answer in answers))


def efficient_rag_em(prediction: str | None, answers: Sequence[str]) -> float:
    """1 where one of the answers contains the prediction after normalisation, else 0.

    It is what EfficientRAG's published evaluation calls exact match (Zhuang et al., 2024, table 3). There, an answer
    that is empty after normalisation counts as right; here it counts as wrong, because a program that fails on a
    question answers nothing.

    Example:
        >>> from hoptimizer.eval.answers import efficient_rag_em
        >>> efficient_rag_em("Rhine", ["river Rhine"])
        1.0
    """
    given = normalize(prediction)
    return float(any(_within(given, normalize(answer)) for answer in answers))


def _within(part: str, whole: str) -> bool:
    """Whether a text stands in another. Nothing stands in nothing alone, as everything would contain it."""
    return part in whole if part else not whole
