"""DROP's exact match and F1 (Dua et al., 2019, section 5), by which IRCoT scores IIRC.

An answer may consist of several spans, and numbers have to be right. IRCoT also repairs wrongly decoded text and
straightens quotation marks before it compares, which is not done here.
"""

import re
from collections.abc import Sequence

from hoptimizer.common.strict import read_json
from hoptimizer.eval.answers import ARTICLES, PUNCTUATION

_BETWEEN_TOKENS = re.compile("[ -]")
_LIST_MARKS = str.maketrans("", "", '"[]')


def drop_em(prediction: str | None, answers: Sequence[str]) -> float:
    """1 where the prediction has the spans of one of the answers, in any order, else 0.

    Args:
        prediction: the answer given; several spans are written as a list in brackets, ``["Lyon", "Oslo"]``.
        answers: the right ones; several spans are a list in JSON, whose commas within a span divide nothing.

    Example:
        >>> from hoptimizer.eval.drop import drop_em
        >>> drop_em('["Oslo", "Lyon"]', ['["Lyon", "Oslo"]']), drop_em("1,000 m", ["1000.0 m"])
        (1.0, 1.0)
    """
    given = _spans(prediction)
    return float(any(_same(given, _gold_spans(answer)) for answer in answers))


def drop_f1(prediction: str | None, answers: Sequence[str]) -> float:
    """The best F1 over the answers, between the sets of tokens of aligned spans, to two digits; 0 to 1.

    Spans are aligned one to one so that their F1 is greatest in total; it is divided by the number of spans on the
    longer side. A right span with numbers in it counts only where the given span has one of them.

    Args:
        prediction: the answer given; several spans are written as a list in brackets, ``["Lyon", "Oslo"]``.
        answers: the right ones; several spans are a list in JSON, whose commas within a span divide nothing.

    Example:
        >>> from hoptimizer.eval.drop import drop_f1
        >>> drop_f1("Oslo", ['["Lyon", "Oslo"]']), drop_f1("12 years", ["13 years"])
        (0.5, 0.0)
    """
    given = _spans(prediction)
    return max((_aligned_f1(given, _gold_spans(answer)) for answer in answers), default=0.0)


def _spans(answer: str | None) -> list[str]:
    """The normalised spans of an answer, at least one: an answer in brackets is split at its commas, as by IRCoT."""
    text = "" if answer is None else str(answer)
    listed = text.strip().startswith("[") or text.strip().endswith("]")
    spans = text.translate(_LIST_MARKS).split(",") if listed else [text]
    return [_normalize(span) for span in spans]


def _gold_spans(answer: str) -> list[str]:
    """The normalised spans of a right answer: of a list in JSON as they are, else as of a given answer."""
    try:
        spans = read_json(answer)
    except ValueError:
        spans = None
    return [_normalize(str(span)) for span in spans] if isinstance(spans, list) and spans else _spans(answer)


def _normalize(span: str) -> str:
    tokens = (_normalize_token(token) for token in _BETWEEN_TOKENS.split(span.lower()))
    return " ".join(token for token in tokens if token)


def _normalize_token(token: str) -> str:
    """A number as Python writes it; of any other token what SQuAD's normalisation leaves."""
    if not _is_number(token):
        token = token.translate(PUNCTUATION)  # "1,000" becomes a number by this
    if _is_number(token):
        token = str(float(token))
    return " ".join(ARTICLES.sub(" ", token).split())


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _same(given: list[str], gold: list[str]) -> bool:
    return len(given) == len(gold) and set(given) == set(gold)


def _aligned_f1(given: list[str], gold: list[str]) -> float:
    import numpy as np  # imported here: half a second that reading data and a config does not need
    from scipy.optimize import linear_sum_assignment

    scores = np.array([[_bag_f1(set(one.split()), set(other.split())) for one in given] for other in gold])
    aligned = scores[linear_sum_assignment(scores, maximize=True)]
    return float(np.round(aligned.sum() / max(scores.shape), 2))


def _bag_f1(given: set[str], gold: set[str]) -> float:
    numbers = {token for token in gold if _is_number(token)}
    if numbers and numbers.isdisjoint(given):
        return 0.0
    shared = len(given & gold)
    precision = shared / len(given) if given else 1.0
    recalled = shared / len(gold) if gold else 1.0
    return 2 * precision * recalled / (precision + recalled) if precision + recalled else 0.0
