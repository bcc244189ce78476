"""EM and F1 are those of the published evaluation scripts, each written here a second time from what it does."""

import itertools
import re
import string
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from hoptimizer.eval import METRICS, Question
from hoptimizer.eval.answers import normalize

LEFT = [
    "", " ", "yes", "Yes.", "no", "No, it was not", "noanswer", "the", "The Rhine", "a river, the Rhine!",
    "Rhine river",
    "U.S.", "U.S. Senate", "1,871", "12 years", "$12", "twenty-one", "Étienne Dupont", "E\u0301tienne", "東京", "Ａ",
    "a",
    "an apple a day", "don't", "“quoted”", "ﬁnal", "x" * 300, "new new york", "\u00a0Lyon\t", '["Lyon", "Oslo"]',
]  # fmt: skip
RIGHT = [
    ["yes"], ["no"], ["noanswer"], ["the"], ["Rhine", "river Rhine", ""], ["US", "United States"], ["1871", "1,871"],
    ["13 years", "12 years"], ["twenty one"], ["étienne dupont", "Dupont"], ["東京", "Tokyo"], ["Lyon", "the a an"],
    ["new york", "York"], ["Dont", "do not"], ["final", '"quoted"'], ["A", "apple"], ["  Lyon  "], ["Oslo, Lyon"],
    ['["Oslo", "Lyon"]', "Oslo"], ["!!!", "?"],
]  # fmt: skip
PAIRS = list(itertools.product(LEFT, RIGHT))

KEPT = {"yes", "no", "noanswer"}


def squad_normal(text: str) -> str:
    """As SQuAD's script, HotpotQA's, 2WikiMultihopQA's and MuSiQue's have it, step by step."""
    lowered = "".join(character.lower() for character in text)
    bare = "".join(character for character in lowered if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def f1_of(given: str, gold: str, *, empty: str, verdicts: bool) -> float:
    """Token F1 as the scripts compute it, by precision and recall."""
    given, gold = squad_normal(given), squad_normal(gold)
    if verdicts and (given in KEPT or gold in KEPT) and given != gold:
        return 0.0
    left, right = given.split(), gold.split()
    if empty == "SQuAD 2.0" and (not left or not right):
        return float(left == right)
    same = sum((Counter(left) & Counter(right)).values())
    if same == 0:
        return 0.0
    precision, recall = 1.0 * same / len(left), 1.0 * same / len(right)
    return (2 * precision * recall) / (precision + recall)


def number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def drop_normal(text: str) -> str:
    """As DROP's script has it: token by token, split at blanks and hyphens."""
    tokens = []
    for token in re.split(" |-", text):
        kept = token.lower()
        kept = kept if number(kept) else "".join(c for c in kept if c not in set(string.punctuation))
        kept = str(float(kept)) if number(kept) else kept
        kept = " ".join(re.compile(r"\b(a|an|the)\b", re.UNICODE).sub(" ", kept).split())
        if kept.strip():
            tokens.append(kept)
    return " ".join(tokens).strip()


def drop_spans(text: str) -> list[str]:
    listed = text.strip().startswith("[") or text.strip().endswith("]")
    return re.sub(r'["\[\]]', "", text).split(",") if listed else [text]


def drop_of(given: str, gold: str) -> tuple[float, float]:
    left, right = [drop_normal(one) for one in drop_spans(given)], [drop_normal(one) for one in drop_spans(gold)]
    em = 1.0 if set(left) == set(right) and len(left) == len(right) else 0.0
    scores = np.zeros([len(right), len(left)])
    for i, j in itertools.product(range(len(right)), range(len(left))):
        wanted, have = set(right[i].split()), set(left[j].split())
        numbers, shared = {token for token in wanted if number(token)}, len(wanted & have)
        if not numbers or numbers & {token for token in have if number(token)}:
            precision = 1.0 if not have else shared / float(len(have))
            recall = 1.0 if not wanted else shared / float(len(wanted))
            scores[i, j] = 0.0 if precision == recall == 0.0 else (2 * precision * recall) / (precision + recall)
    rows, columns = linear_sum_assignment(-scores)
    best = np.zeros([max(len(right), len(left))])
    for row, column in zip(rows, columns, strict=True):
        best[row] = max(best[row], scores[row, column])
    return em, round(float(np.mean(best)), 2)


REFERENCES = {
    "em": lambda given, gold: float(squad_normal(given) == squad_normal(gold)),
    "f1": lambda given, gold: f1_of(given, gold, empty="SQuAD 2.0", verdicts=False),
    "hotpotqa_f1": lambda given, gold: f1_of(given, gold, empty="no agreement", verdicts=True),
    "drop_em": lambda given, gold: drop_of(given, gold)[0],
    "drop_f1": lambda given, gold: drop_of(given, gold)[1],
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_metric_is_that_of_the_published_script_on_every_pair(name):
    assert len(PAIRS) >= 200
    for given, golds in PAIRS:
        asked = Question.model_construct(id="q", question="?", answers=golds, passages=[])
        prediction = type("Prediction", (), {"answer": given})
        wanted = max(REFERENCES[name](given, gold) for gold in golds)
        assert METRICS[name].measure(asked, prediction) == pytest.approx(wanted, abs=1e-9), (given, golds)


def test_normalisation_is_that_of_the_published_scripts():
    for text in [*LEFT, *itertools.chain.from_iterable(RIGHT)]:
        assert normalize(text) == squad_normal(text)
