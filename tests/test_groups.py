"""Scores by the type of a question and by its number of hops, in a run and side by side."""

import json
import sys
from statistics import fmean

import mlflow
import pytest

from hoptimizer import Tracker, UserError, compare_variants, evaluate_variant, load_config
from hoptimizer.cli import main
from hoptimizer.comparison import log_comparison
from hoptimizer.eval import Question
from hoptimizer.eval.groups import metrics_by_group
from hoptimizer.eval.runner import QuestionResult

KINDS = ["bridge", "bridge", "comparison/both", None]
HOPS = [2, 3, 2, 0]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with two runs on questions of two types, and one on questions that say nothing of themselves."""
    folder = tmp_path_factory.mktemp("groups")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, annotated in (("mine", True), ("plain", False)):
            write(folder / name, annotated)
        runs = [evaluate_variant(config(folder, "mine", k)).run_id for k in (1, 2)]
        yield folder, runs, evaluate_variant(config(folder, "plain", 1)).run_id


def write(folder, annotated):
    folder.mkdir()
    hop = {"question": "What?", "answer": "that", "passage": "rivers"}
    passages = [{"id": name, "title": name, "text": f"About {name} and more {name}."} for name in ("rivers", "towers")]
    questions = []
    for n, (kind, hops) in enumerate(zip(KINDS, HOPS, strict=True)):
        known = {"hops": [hop] * hops, **({"type": kind} if kind else {})} if annotated else {}
        supporting = ["rivers", "towers"][: 1 + n % 2]
        question = {"id": str(n), "question": f"Of rivers, what is {n}?", "answers": ["that"], "passages": supporting}
        questions.append(question | known)
    for name, rows in {"corpus": passages, "dev": questions}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def config(folder, data, k):
    words = [f"data={folder / data}", "program.name=rag", "program.reader=none", "retriever.name=bm25"]
    return load_config(None, [*words, f"retriever.k={k}", f"tracking.uri=sqlite:///{folder}/mlflow.db"])


def test_a_run_has_every_metric_by_group_with_the_number_of_questions(store):
    _, [_, second], plain = store
    logged = mlflow.get_run(second).data.metrics
    assert logged["workings/dev/n/type/bridge"] == 2
    assert logged["workings/dev/n/type/comparison_both"] == 1
    assert logged["workings/dev/n/hops/2"] == 2
    assert logged["workings/dev/n/hops/3"] == 1
    assert {"workings/dev/f1/hops/3", "workings/dev/em/type/bridge", "workings/dev/recall/type/bridge"} <= set(logged)
    assert not [name for name in logged if "lm_calls/" in name or "tokens/" in name]
    assert not [name for name in mlflow.get_run(plain).data.metrics if "/type/" in name or "/hops/" in name]


def test_metrics_by_group_are_not_mistaken_for_those_of_the_run(store):
    folder, [first, _], _ = store
    assert not [name for name in Tracker(uri(folder), "mine").metrics(first, "dev") if "/" in name]


def test_types_that_name_single_questions_are_no_groups():
    questions = [Question(id=str(n), question="Where?", answers=["Lyon"], type=f"kind {n}") for n in range(31)]
    assert metrics_by_group([QuestionResult(question, "", [], {"f1": 1.0}, []) for question in questions]) == {}


def uri(folder):
    return f"sqlite:///{folder}/mlflow.db"


def test_variants_are_compared_in_groups_that_hold_all_questions(store):
    folder, runs, _ = store
    tracker = Tracker(uri(folder), "mine")
    by_type = compare_variants(tracker, runs, metric="recall", by="type")
    assert [(group.name, group.n) for group in by_type.groups] == [("bridge", 2), ("comparison/both", 1), (None, 1)]
    by_hops = compare_variants(tracker, runs, metric="recall", by="hops")
    assert [(group.name, group.n) for group in by_hops.groups] == [("2", 2), ("3", 1), (None, 1)]
    for compared in (by_type, by_hops):
        for number, variant in enumerate(compared.variants):
            parts = [group.estimates[number].mean * group.n for group in compared.groups]
            assert sum(parts) / 4 == pytest.approx(fmean(variant.scores["recall"]))
        assert [group.differences[0].n for group in compared.groups] == [group.n for group in compared.groups]
    bridge = by_type.groups[0]
    assert bridge.estimates[1].low <= bridge.estimates[1].mean <= bridge.estimates[1].high
    assert log_comparison(tracker, by_type)
    assert "groups" not in compare_variants(tracker, runs, metric="recall").as_dict()


def test_what_can_not_be_grouped_is_one_line(store):
    folder, runs, plain = store
    with pytest.raises(UserError, match=r"--by kind: expected type or hops"):
        compare_variants(Tracker(uri(folder), "mine"), runs, by="kind")
    with pytest.raises(UserError, match=r"--by hops: the runs know no hops of their questions; annotate"):
        compare_variants(Tracker(uri(folder), "plain"), [plain], by="hops")


def test_the_command_prints_groups_with_intervals(store, monkeypatch, capsys):
    folder, runs, _ = store
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")

    def hop(*words):
        # MLflow keeps a store by its URI, so that a relative one may be that of another test's folder.
        where = f"tracking.uri=sqlite:///{folder}/mlflow.db"
        monkeypatch.setattr(sys, "argv", ["hop", "compare", *runs, where, "--metric", "recall", "--by", "type", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    shown = hop()
    assert "recall by type, 95% intervals" in shown
    assert "not given" in shown
    groups = json.loads(hop("--json"))["groups"]
    assert [group["n"] for group in groups] == [2, 1, 1]
    assert set(groups[0]["estimates"][0]) == {"mean", "low", "high", "n"}
