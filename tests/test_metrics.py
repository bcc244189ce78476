import random
import re
import string
from types import SimpleNamespace

import dspy
import pytest

from hoptimizer.common.errors import UserError
from hoptimizer.eval import METRICS, Question, exact_match, f1, metric, recall, score_prediction
from hoptimizer.eval.metrics import normalize
from hoptimizer.retrieval.passage import Passage

QUESTION = Question(id="q", question="Where?", answers=["Lyon", "Lyon, France"], passages=["a", "b"])


def prediction(answer: object, *ids: str) -> SimpleNamespace:
    return SimpleNamespace(answer=answer, passages=[Passage(id, "", "text") for id in ids], steps=[])


# SQuAD's definition, written a second time from its description: drop case, then ASCII punctuation, then the words a,
# an and the, then count the tokens that both sides share, each as often as both have it.
def reference_tokens(text: str) -> list[str]:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return [token for token in re.sub(r"\b(a|an|the)\b", " ", kept).split() if token]


def reference_f1(given: str, gold: str) -> float:
    left, right = reference_tokens(given), reference_tokens(gold)
    if not left or not right:
        return float(left == right)
    unmatched, shared = list(right), 0
    for token in left:
        if token in unmatched:
            unmatched.remove(token)
            shared += 1
    if not shared:
        return 0.0
    precision, recalled = shared / len(left), shared / len(right)
    return 2 * precision * recalled / (precision + recalled)


VOCABULARY = [
    "the",
    "The",
    "a",
    "An",
    "Lyon",
    "lyon,",
    "U.S.",
    "—",
    "Ünïcode",
    "1,871",
    "of",
    "of",
    "-",
    "東京",
    "theatre",
    "\t",
]


def test_agrees_with_an_independent_reading_of_squad_on_random_answers():
    draw = random.Random(0)
    for _ in range(3000):
        given = " ".join(draw.choices(VOCABULARY, k=draw.randrange(7)))
        golds = [" ".join(draw.choices(VOCABULARY, k=draw.randrange(7))) for _ in range(draw.randrange(1, 4))]
        assert f1(given, golds) == pytest.approx(max(reference_f1(given, gold) for gold in golds))
        matches = [reference_tokens(given) == reference_tokens(gold) for gold in golds]
        assert exact_match(given, golds) == float(any(matches))
        assert exact_match(given, golds) <= f1(given, golds) <= 1


@pytest.mark.parametrize(
    ("given", "gold", "em", "score"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1, 1),
        ("Lyon in France", "Lyon", 0, 0.5),
        ("new new york", "new york", 0, 0.8),
        ("new york", "new new york york", 0, 2 / 3),
        ("yes", "no", 0, 0),
        ("U.S.", "us", 1, 1),
        ("theatre", "atre", 0, 0),
        ("", "Lyon", 0, 0),
        ("the", "Lyon", 0, 0),
        ("the", "a", 1, 1),
        ("東京", "東京", 1, 1),
        ("twenty-one", "twenty one", 0, 0),
        ("café", "CAFÉ", 1, 1),
    ],
)
def test_published_examples(given: str, gold: str, em: float, score: float):
    assert exact_match(given, [gold]) == em
    assert f1(given, [gold]) == pytest.approx(score)


def test_the_best_alias_counts():
    assert exact_match("lyon france", QUESTION.answers) == 1
    assert f1("in Lyon", QUESTION.answers) == pytest.approx(2 / 3)


@pytest.mark.parametrize("answer", [None, "", " ", "\ud800", 42, 3.5, ["Paris"], True])
def test_no_answer_whatever_it_is_raises(answer: object):
    scores = score_prediction(QUESTION, prediction(answer))
    assert scores["em"] == 0
    assert 0 <= scores["f1"] <= 1
    assert normalize(None) == ""


def test_nothing_predicted_and_nothing_accepted_do_not_raise():
    assert exact_match("Lyon", []) == f1("Lyon", []) == 0
    empty = score_prediction(QUESTION, dspy.Prediction())
    assert empty == {"em": 0, "f1": 0, "recall": 0, "passages": 0}
    assert score_prediction(QUESTION, SimpleNamespace(answer="Lyon", passages=None))["em"] == 1


def test_recall_counts_each_supporting_passage_once():
    assert recall(["a", "a", "x"], ["a", "b"]) == 0.5
    assert recall(["b", "a"], ["a", "b", "b"]) == 1
    assert recall([], ["a"]) == 0
    assert recall(["a"], []) is None


def test_scores_hold_every_metric_but_those_without_annotation():
    assert score_prediction(QUESTION, prediction("Lyon", "a", "x")) == {"em": 1, "f1": 1, "recall": 0.5, "passages": 2}
    bare = Question(id="q", question="Where?", answers=["Lyon"])
    assert set(score_prediction(bare, prediction("Lyon", "a"))) == set(METRICS) - {"recall"}


def test_an_unknown_metric_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no metric or count 'recal'; did you mean 'recall'\? known: em, f1"):
        metric("recal")
