import doctest
import random
import re
import string
from pathlib import Path
from types import ModuleType, SimpleNamespace

import dspy
import pytest

from hoptimizer import Tracker, compare_variants, evaluate_variant, load_config
from hoptimizer.common.errors import UserError
from hoptimizer.eval import (
    METRICS,
    Objective,
    Question,
    answers,
    drop,
    exact_match,
    f1,
    metric,
    recall,
    score_prediction,
)
from hoptimizer.eval.answers import contains, efficient_rag_em, hotpotqa_f1, normalize
from hoptimizer.eval.display.format import figure
from hoptimizer.eval.drop import drop_em, drop_f1
from hoptimizer.retrieval.passage import Passage
from hoptimizer.study.file import StudyFile

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


# SQuAD 2.0's F1, which MuSiQue's script has too, beside that of HotpotQA's script, which 2WikiMultihopQA's shares. All
# normalise in the same way.
@pytest.mark.parametrize(
    ("given", "gold", "squad", "hotpotqa"),
    [
        ("Yes.", "yes", 1, 1),  # equal after normalisation
        ("yes", "no", 0, 0),
        ("no it was not", "no", 0.4, 0),  # the right answer is no, and the given one more than that: 2 * 1 / (4 + 1)
        ("no", "no man is an island", 2 / 5, 0),  # the given answer is no: 2 * 1 / (1 + 4), "an" is dropped
        ("noanswer", "noanswer given", 2 / 3, 0),  # 2 * 1 / (1 + 2)
        ("no answer", "noanswer", 0, 0),
        ("no answer", "no answer given", 0.8, 0.8),  # "no" is a token here, not the answer: 2 * 2 / (2 + 3)
        ("the", "a", 1, 0),  # both are empty, which SQuAD 2.0 calls agreement; no token is shared
        ("the", "Lyon", 0, 0),
        ("Lyon in France", "Lyon", 0.5, 0.5),  # 2 * 1 / (3 + 1)
        ("new new york", "new york", 0.8, 0.8),  # 2 * 2 / (3 + 2): the second "new" finds no partner
    ],
)
def test_hotpotqa_differs_from_squad_where_an_answer_is_yes_no_or_empty(
    given: str, gold: str, squad: float, hotpotqa: float
):
    assert f1(given, [gold]) == pytest.approx(squad)
    assert hotpotqa_f1(given, [gold]) == pytest.approx(hotpotqa)


@pytest.mark.parametrize("module", [answers, drop])
def test_the_examples_of_the_metrics_run(module: ModuleType):
    failed, attempted = doctest.testmod(module)
    assert (failed, attempted > 0) == (0, True)


def test_hotpotqa_takes_the_best_alias():
    assert hotpotqa_f1("the UK", ["United Kingdom", "UK", "British"]) == 1
    assert hotpotqa_f1("no", ["no man", "No"]) == 1


# DROP's script by hand: tokens are split at blanks and hyphens; a token that is no number loses its punctuation; what
# is a number then is written as a float; articles go. Bags are sets of tokens.
@pytest.mark.parametrize(
    ("given", "gold", "em", "score"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1, 1),
        ("twenty-one", "twenty one", 1, 1),  # split at the hyphen, where SQuAD joins the two
        ("1,000 m", "1000.0 m", 1, 1),  # the comma goes, then both are 1000.0
        ("$5", "5", 1, 1),
        ("3.5", "35", 0, 0),  # 3.5 is a number already and keeps its point, so no number is right
        ("new new york", "new york", 0, 1),  # not the same span, but the same set of tokens
        ("york", "new york", 0, 0.67),  # precision 1, recall 1/2: 2/3 in two digits
        ("12 years", "13 years", 0, 0),  # "years" is shared, but the number is wrong
        ("years", "13 years", 0, 0),  # a number is right, and none was given
        ("13 years", "years", 0, 0.67),  # the right answer has no number: precision 1/2, recall 1
        ("March 3 1871", "March 5 1871", 0, 0.67),  # one of the numbers is right: 2 of 3 tokens are shared
        ("", "Lyon", 0, 0),  # precision 1 by definition, recall 0
        ("the", "a", 1, 1),  # both bags are empty: precision and recall are 1 by definition
        ('["Lyon", "Oslo"]', '["Oslo", "Lyon"]', 1, 1),  # the order of spans does not matter
        ('["Oslo"]', "Oslo", 1, 1),
        ("[Lyon, Oslo]", '["Lyon"]', 0, 0.5),  # 1 for Lyon, and nothing for Oslo to be aligned with: (1 + 0) / 2
        ("Lyon", '["Lyon", "Oslo", "Rome"]', 0, 0.33),  # (1 + 0 + 0) / 3
        # "new york" goes with "new york city" (0.8) and "york" with "york" (1), not crosswise (1/2 and 2/3).
        ('["york", "new york"]', '["new york city", "york"]', 0, 0.9),
        # As often published: the same set of spans and the same number of them is a match, though F1 finds one astray.
        ('["a1", "a1", "b1"]', '["a1", "b1", "b1"]', 1, 0.67),
        # A comma in brackets separates given spans, [lyon, france] and [lyon]; right ones are a list, 2/3 and 0 of one.
        ('["Lyon, France"]', '["Lyon"]', 0, 0.5),
        ('["Lyon, France"]', '["Lyon, France"]', 0, 0.33),
        ("[1000, 2000]", '["1,000", "2,000"]', 1, 1),
        ('["3,000", "4,000"]', '["1,000", "2,000"]', 0, 0),
    ],
)
def test_drop_aligns_spans_and_wants_a_right_number(given: str, gold: str, em: float, score: float):
    assert drop_em(given, [gold]) == em
    assert drop_f1(given, [gold]) == score


def test_drop_takes_the_best_answer():
    assert drop_em("Oslo", ['["Lyon", "Oslo"]', "Oslo"]) == 1
    assert drop_f1("york", ["lyon", "new york"]) == 0.67


# Normalised texts are compared character by character. EfficientRAG's script asks whether the given answer stands in
# the right one, and the containment that others report asks for the reverse.
@pytest.mark.parametrize(
    ("given", "gold", "contained", "efficient_rag"),
    [
        ("The Rhine", "rhine", 1, 1),
        ("It flows into the Rhine.", "the Rhine", 1, 0),
        ("Rhine", "river Rhine", 0, 1),
        ("Rhinestone", "Rhine", 1, 0),  # a part of a word
        ("Rhine river", "river Rhine", 0, 0),  # the order counts
        ("", "Rhine", 0, 0),  # the script has 1 for the empty answer; ours has 0, because failures answer nothing
        ("the", "a", 1, 1),  # empty on both sides is the same answer
        ("Rhine", "the", 0, 0),
    ],
)
def test_containment_is_asked_in_either_direction(given: str, gold: str, contained: float, efficient_rag: float):
    assert contains(given, [gold]) == contained
    assert efficient_rag_em(given, [gold]) == efficient_rag


SPANS = [*VOCABULARY, "yes", "no", "12", "13", "$12", "3.5", '["Lyon", "Oslo"]', "[12, Oslo]"]


def test_scores_of_random_answers_lie_between_0_and_1_are_symmetric_and_best_for_the_right_answer():
    draw = random.Random(0)
    for _ in range(2000):
        left, right = (" ".join(draw.choices(SPANS, k=draw.randrange(5))) for _ in range(2))
        scores = score_prediction(Question(id="q", question="?", answers=[right.strip() or "?"]), prediction(left))
        assert all(0 <= scores[name] <= 1 for name in scores if METRICS[name].percent)
        assert scores["em"] <= min(scores["contains"], scores["efficient_rag_em"])
        assert hotpotqa_f1(left, [right]) <= f1(left, [right])
        assert hotpotqa_f1(left, [right]) == pytest.approx(hotpotqa_f1(right, [left]))
        assert drop_em(left, [right]) == drop_em(right, [left])
        assert contains(left, [right]) == efficient_rag_em(right, [left])
        assert drop_em(left, [left]) == drop_f1(left, [left]) == contains(left, [left]) == 1
        assert hotpotqa_f1(left, [left]) == bool(normalize(left))
        better = [score(left, [right, left]) >= score(left, [right]) for score in (hotpotqa_f1, drop_f1, drop_em)]
        assert all(better), "another right answer takes nothing away"


@pytest.mark.parametrize("name", ["hotpotqa_f1", "drop_em", "drop_f1", "contains", "efficient_rag_em"])
def test_a_published_metric_is_maximized_by_its_name(name: str):
    objective = Objective.parse(name)
    assert (objective.name, objective.own) == (name, ())
    assert objective(QUESTION.to_dspy(), prediction("Lyon")) == 1
    assert objective(QUESTION.to_dspy(), prediction("Oslo")) == 0
    assert Objective.parse({name: 0.5, "lm_calls": -0.1}).label == f"0.5 {name} - 0.1 lm_calls"


def test_tables_show_a_published_metric_where_it_is_named(tmp_path: Path):
    store = f"sqlite:///{tmp_path}/mlflow.db"
    words = ["data=atlas", "data.dev=3", "program.name=rag", "program.reader=none", "retriever.name=bm25"]
    configs = [load_config(None, [*words, f"retriever.k={k}", f"tracking.uri={store}"]) for k in (1, 2)]
    runs = [evaluate_variant(config).run_id for config in configs]
    unnamed, named = (compare_variants(Tracker(store, "atlas"), runs, metric=name) for name in ("f1", "hotpotqa_f1"))
    assert not {"hotpotqa_f1", "drop_f1", "contains"} & set(unnamed.variants[0].estimates)
    assert {"f1", "hotpotqa_f1"} < set(named.variants[0].estimates)
    assert not {"drop_f1", "contains"} & set(named.variants[0].estimates)
    with pytest.raises(UserError, match=r"no scores of 'hotpot' in common; .*known: .*hotpotqa_f1"):
        compare_variants(Tracker(store, "atlas"), runs, metric="hotpot")
    assert figure("hotpotqa_f1", 0.5) == figure("f1", 0.5) == "50.0"
    study = StudyFile.model_validate({"base": {"data": "atlas"}, "grid": {"retriever.k": [1]}, "figures": ["drop_f1"]})
    assert study.figures == ["drop_f1"]


@pytest.mark.parametrize("answer", [None, "", " ", "\ud800", 42, 3.5, ["Paris"], True])
def test_no_answer_whatever_it_is_raises(answer: object):
    scores = score_prediction(QUESTION, prediction(answer))
    assert scores["em"] == 0
    assert 0 <= scores["f1"] <= 1
    assert normalize(None) == ""


def test_nothing_predicted_and_nothing_accepted_do_not_raise():
    assert exact_match("Lyon", []) == f1("Lyon", []) == 0
    assert drop_em("Lyon", []) == drop_f1("Lyon", []) == hotpotqa_f1("Lyon", []) == contains("Lyon", []) == 0
    assert set(score_prediction(QUESTION, dspy.Prediction()).values()) == {0}
    assert score_prediction(QUESTION, SimpleNamespace(answer="Lyon", passages=None))["em"] == 1


def test_recall_counts_each_supporting_passage_once():
    assert recall(["a", "a", "x"], ["a", "b"]) == 0.5
    assert recall(["b", "a"], ["a", "b", "b"]) == 1
    assert recall([], ["a"]) == 0
    assert recall(["a"], []) is None


def test_scores_hold_every_metric_but_those_without_annotation():
    scores = score_prediction(QUESTION, prediction("Lyon", "a", "x"))
    assert set(scores) == set(METRICS)
    assert [scores[name] for name in ("em", "f1", "recall", "passages")] == [1, 1, 0.5, 2]
    bare = Question(id="q", question="Where?", answers=["Lyon"])
    assert set(score_prediction(bare, prediction("Lyon", "a"))) == set(METRICS) - {"recall"}


def test_an_unknown_metric_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no metric or count 'recal'; did you mean 'recall'\? known: .*em, f1"):
        metric("recal")
