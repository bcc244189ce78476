"""Runs matched by their questions, and a comparison as a page: what it says, and that texts in it stay texts."""

import contextlib
import json
import math
import re
import shutil
import sqlite3
import sys
from dataclasses import replace
from types import SimpleNamespace

import mlflow
import pandas as pd
import pytest

from hoptimizer import Tracker, UserError, compare_variants, evaluate_variant, load_config, write_report
from hoptimizer.cli import main
from hoptimizer.comparison import log_comparison
from hoptimizer.comparison.differing import differing
from hoptimizer.comparison.sheets import comparison_sheets, scores_sheet
from hoptimizer.eval.display.sheet import MARK
from hoptimizer.eval.statistics import holm
from hoptimizer.report.disagreements import disagreements, judged_by, worth_a_look
from hoptimizer.report.steps import shown_step
from hoptimizer.retrieval import Corpus
from hoptimizer.tracking.journal import find_run
from hoptimizer.tracking.naming import as_params

ATTACK = "<script>alert(1)</script>\u202e\x1b[2J {{ 7*7 }}"
COUNT = 12


def write(folder):
    """A data set of which half of the questions have their passage found first."""
    passages = [{"id": f"p{n}", "title": f"Town {n}", "text": f"Town {n} lies at river {n}."} for n in range(COUNT)]
    questions = [
        {
            "id": f"q{n}",
            "question": f"Where lies town {n}? {ATTACK if n == 1 else ''}",
            "answers": [f"river {n}"],
            "passages": [f"p{n}", f"p{(n + 1) % COUNT}"],
        }
        for n in range(COUNT)
    ]
    for name, rows in {"corpus": passages, "dev": questions}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def config(folder, *words):
    common = ["program.name=rag", "program.reader=none", "retriever.name=bm25"]
    return load_config(
        None, [f"data={folder / 'towns'}", *common, f"tracking.uri=sqlite:///{folder}/mlflow.db", *words]
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with runs that retrieve more and more passages, of all questions, and one of the first five alone."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "towns").mkdir()
    write(folder / "towns")
    runs = [evaluate_variant(config(folder, f"retriever.k={k}"), name=f"k={k}").run_id for k in (1, 12)]
    few = evaluate_variant(config(folder, "data.dev=5"), name="few").run_id
    return folder, Tracker(f"sqlite:///{folder}/mlflow.db", "towns"), runs, few


def test_runs_are_compared_by_the_questions_that_both_answered(store):
    _, tracker, [first, _], few = store
    compared = compare_variants(tracker, [first, few], metric="recall")
    assert compared.variants[0].ids == compared.variants[1].ids == [f"q{n}" for n in range(5)]
    assert "k=1 answered 12 questions" in compared.notes[0]
    latest = compare_variants(tracker, metric="recall")
    assert [variant.run_id for variant in latest.variants] == [*store[2], few]
    [note] = latest.notes
    assert f"few ({few[:8]}), answered 5 questions of dev and 2 runs answered more" in note
    assert "to leave it out, name the runs" in note


def test_what_another_compile_started_from_stays_out(store):
    _, tracker, [first, second], few = store
    for run, tags in ((first, {"kind": "compile"}), (few, {"kind": "compile", "variant": first})):
        for name, value in tags.items():
            tracker.client.set_tag(run, f"hop.{name}", value)
    compared = compare_variants(tracker, metric="recall")
    assert [variant.run_id for variant in compared.variants] == [second, few]
    assert any("another compile started from" in note for note in compared.notes)
    for run, name, value in ((first, "kind", "eval"), (few, "kind", "eval")):
        tracker.client.set_tag(run, f"hop.{name}", value)
    tracker.client.delete_tag(few, "hop.variant")


def test_the_language_model_and_what_differs_are_columns_and_differences_are_corrected(store):
    _, tracker, [first, second], few = store
    compared = compare_variants(tracker, [first, second, few], metric="recall")
    assert [list(variant.settings) for variant in compared.variants] == [["lm.default.model", "retriever.k"]] * 3
    sheet = scores_sheet(compared)
    assert sheet.header[:4] == ["variant", "run", "LM", "k"]
    assert compared.p == holm([difference.p for difference in compared.differences])
    assert compared.as_dict()["differences"][0]["p_holm"] == compared.p[0]
    whole = compare_variants(tracker, [first, second], metric="recall")
    assert whole.p[0] < 0.05
    assert MARK in scores_sheet(whole).rows[1][sheet.header.index("Δ recall")]
    assert "<table" in whole._repr_html_()


def test_runs_that_searched_different_passages_are_said_to(store):
    _, tracker, [first, second], _ = store
    assert compare_variants(tracker, [first, second], metric="recall").notes == []
    digest = tracker.get(second).data.tags["hop.corpus_digest"]
    tracker.client.set_tag(second, "hop.corpus_digest", "that of the folder as it was before")
    [note] = compare_variants(tracker, [first, second], metric="recall").notes
    assert "the same passages" in note
    tracker.client.set_tag(second, "hop.corpus_digest", digest)


def test_recall_by_other_supporting_passages_is_not_compared(tmp_path):
    words = [f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", "metric={em: 1, recall: 1}"]
    gold = {"first": lambda p: p, "reordered": lambda p: p[::-1], "other": lambda p: p[1:]}
    runs = {}
    for name, change in gold.items():
        (tmp_path / name / "towns").mkdir(parents=True)
        write(tmp_path / name / "towns")
        file = tmp_path / name / "towns" / "dev.jsonl"
        questions = [json.loads(line) for line in file.read_text().splitlines()]
        for question in questions:
            question["passages"] = change(question["passages"])
        file.write_text("\n".join(map(json.dumps, questions)))
        runs[name] = evaluate_variant(config(tmp_path / name, *words)).run_id
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "towns")
    compared = compare_variants(tracker, [runs["first"], runs["other"]])
    assert not {"recall", "objective"} & set(compared.variants[0].scores)
    assert compared.notes == [
        "recall and objective left out: the supporting passages of these questions are not the same in all runs"
    ]
    assert "recall and objective left out" in scores_sheet(compared).note
    for metric in ("recall", "objective"):
        with pytest.raises(
            UserError, match=rf"no scores of '{metric}' in common \(it takes .*supporting passages"
        ) as e:
            compare_variants(tracker, [runs["first"], runs["other"]], metric=metric)
        assert f"did you mean '{metric}'" not in str(e.value)
    same = compare_variants(tracker, [runs["first"], runs["reordered"]], metric="recall")
    assert (same.notes, "objective" in same.variants[0].scores) == ([], True)


@pytest.fixture(scope="module")
def own(store):
    """Runs of metrics of the user's by their dotted paths, of which two have the same name; their code is gone."""
    folder, *_ = store
    code = folder / "code"
    code.mkdir()
    for module, value in {"mine_": 1.0, "theirs_": 0.0}.items():
        body = f"def score(example, prediction, trace=None):\n    return {value} * (len(prediction.passages) > 1)\n"
        (code / f"{module}.py").write_text(body)
    words = {
        "mine": ["metric=mine_:score", "retriever.k=1"],
        "weighed": ["metric={'mine_:score': 0.5, f1: 0.5}", "retriever.k=12"],
        "again": ["metric=mine_:score", "retriever.k=12"],
        "theirs": ["metric=theirs_:score"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(code))
        runs = {
            name: evaluate_variant(config(folder, "tracking.experiment=own", *more)).run_id
            for name, more in words.items()
        }
    for module in ("mine_", "theirs_"):
        del sys.modules[module]
        (code / f"{module}.py").unlink()
    return runs


def test_metrics_of_ones_own_that_are_called_alike_are_not_compared(store, own):
    tracker = store[1]
    for other in ("again", "weighed"):
        compared = compare_variants(tracker, [own["mine"], own[other]], metric="score")
        assert compared.differences[0].difference == 1
    with pytest.raises(UserError, match=r"no scores of 'score' in common \(it takes one metric of your own"):
        compare_variants(tracker, [own["mine"], own["theirs"]], metric="score")
    for metric in ("f1", "passages", "retrievals", "prompt_tokens"):
        assert compare_variants(tracker, [own["mine"], own["theirs"]], metric=metric).metric == metric


@pytest.mark.parametrize("command", ["compare", "report"])
def test_runs_with_parts_of_ones_own_are_compared_without_their_code(
    store, own, command, tmp_path, monkeypatch, capsys
):
    folder, _, [first, _], _ = store
    monkeypatch.chdir(tmp_path)

    def hop(*words):
        monkeypatch.setattr(sys, "argv", ["hop", command, *words, f"tracking.uri=sqlite:///{folder}/mlflow.db"])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    code, out, err = hop(own["mine"], own["theirs"], "--metric", "f1", "--json")
    assert code == 0, err
    assert json.loads(out)["metric"] == "f1"
    assert Tracker(f"sqlite:///{folder}/mlflow.db", "own").client.get_experiment_by_name("own comparisons")
    for word, says in (("sead=3", "sead: unknown key; did you mean 'seed'?"), ("seed=-1", "seed: ")):
        code, _, err = hop(first, word)
        assert (code, says in err) == (2, True), err


def test_options_beyond_what_a_parameter_holds_differ():
    words = ["data=atlas", "program=direct"]
    strategies = [
        f"optimizer={{name: better_together, strategy: [bootstrap_optuna, miprov2, {{name: bootstrap_random_search, "
        f"num_candidate_programs: {number}}}]}}"
        for number in (3, 5)
    ]
    params = [as_params(load_config(None, [*words, strategy]).deciding) for strategy in strategies]
    assert all(len(own["optimizer.strategy"]) == 500 for own in params)
    runs = [SimpleNamespace(data=SimpleNamespace(params=own, tags={"hop.kind": "compile"})) for own in params]
    assert [list(own) for own in differing(runs)] == [["lm.default.model", "optimizer.strategy"]] * 2
    assert as_params({"short": "x" * 500, "no": None}) == {"short": "x" * 500}


def test_options_of_another_part_are_no_difference_of_their_own():
    def run(params, compiled=False):
        return SimpleNamespace(data=SimpleNamespace(params=params, tags={"hop.kind": "compile"} if compiled else {}))

    rag = {"lm.default.model": "a", "program.name": "rag", "seed": "7", "data.train": "4"}
    ircot = rag | {"program.name": "ircot", "program.max_steps": "8", "data.train": "9"}
    found = differing([run(rag), run(ircot), run(rag | {"optimizer.name": "gepa"}, compiled=True)])
    assert [list(own) for own in found] == [
        ["lm.default.model", "program.name"],
        ["lm.default.model", "program.name"],
        ["lm.default.model", "program.name", "optimizer.name"],
    ]
    assert "program.max_steps" in differing([run(ircot), run(ircot | {"program.max_steps": "2"})])[0]


def test_a_page_needs_nothing_from_elsewhere_and_its_texts_mean_nothing_to_a_browser(store):
    folder, tracker, runs, _ = store
    compared = write_report(tracker, runs, folder / "page.html", metric="recall")
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "{{ 7*7 }}" in page
    assert not {"\u202e", "\x1b"} & set(page)
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http://" not in page.replace("http-equiv", "")
    for part in (
        "What was compared",
        "Scores",
        "What a question costs",
        "Where they disagree",
        "10 questions, step by",
    ):
        assert part in page, part
    assert page.count('class="card"') >= 11
    assert "retrieve" in page
    [found] = disagreements(compared)
    assert len(found.only_baseline) + len(found.only_variant) + found.both_right + found.both_wrong == COUNT
    assert not list(folder.glob("*.part"))


def test_a_comparison_is_shown_where_it_can_not_be_kept(tmp_path, monkeypatch, capsys):
    (tmp_path / "towns").mkdir()
    write(tmp_path / "towns")
    run = evaluate_variant(config(tmp_path)).run_id
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        store.execute("CREATE TRIGGER refuse BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'you may only read'); END")
    monkeypatch.setattr(sys, "argv", ["hop", "compare", run, f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    out, err = capsys.readouterr()
    assert json.loads(out)["variants"][0]["run_id"] == run
    [line] = [line for line in err.splitlines() if line.startswith("warning:")]
    assert "the comparison is not kept" in line
    assert "you may only read" in line


def test_a_store_without_its_default_experiment_is_read_and_gets_none_for_what_is_only_read(store, monkeypatch, capsys):
    folder, _, [run, _], _ = store
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    before = {one.name for one in client.search_experiments()}
    client.delete_experiment("0")
    try:
        assert find_run(uri, run[:12])[1] == run
    finally:
        client.restore_experiment("0")
    words = ["data=atlas", "tracking.experiment=twons", f"tracking.uri={uri}"]
    monkeypatch.setattr(sys, "argv", ["hop", "compare", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "experiment 'twons' has no run that answered dev" in capsys.readouterr().err
    assert {one.name for one in client.search_experiments()} == before


def test_a_comparison_keeps_its_plots_where_its_runs_have_their_artifacts(tmp_path):
    (tmp_path / "towns").mkdir()
    write(tmp_path / "towns")
    team = (tmp_path / "team").as_uri()
    run = evaluate_variant(config(tmp_path, f"tracking.artifacts={team}")).run_id
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "towns")  # of a command that names the store alone
    kept = tracker.get(log_comparison(tracker, compare_variants(tracker, [run])))
    assert kept.info.artifact_uri.startswith(f"{team}/")


def test_a_page_shows_what_was_found_while_the_data_set_is_as_it_was(tmp_path):
    (tmp_path / "towns").mkdir()
    write(tmp_path / "towns")
    file = tmp_path / "towns" / "corpus.jsonl"
    long = {"id": "p0", "title": f"Town 0 {ATTACK}", "text": f"Town 0 lies at river 0. {ATTACK} {'And so on. ' * 99}"}
    file.write_text("\n".join([json.dumps(long), *file.read_text(encoding="utf-8").splitlines()[1:]]), encoding="utf-8")
    run = evaluate_variant(config(tmp_path, "retriever.k=2")).run_id
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "towns")

    def page():
        write_report(tracker, [run], tmp_path / "page.html", metric="recall")
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    shown = page()
    assert '<span class="tag">p2</span> Town 2 <span class="asked">Town 2 lies at river 2.</span>' in shown
    assert "Town 0 &lt;script&gt;alert(1)" in shown
    assert "<script" not in shown
    assert not {"\u202e", "\x1b"} & set(shown)
    assert 0 < shown.count("And so on.") < 99
    file.write_text(file.read_text(encoding="utf-8").replace("river 2", "another river"), encoding="utf-8")
    assert "another river" not in page()
    shutil.rmtree(tmp_path / "towns")
    assert re.search('<span class="tag">passages</span> p\\d+, p\\d+', page())


@pytest.mark.parametrize(
    ("metric", "way"), [("recall", "better"), ("passages", "higher"), ("score", "better"), ("retrievals", "")]
)
def test_only_of_what_is_better_the_more_there_is_a_page_says_better(store, own, metric, way):
    folder, tracker, runs, _ = store
    for order, said in ((1, way), (-1, {"better": "worse", "higher": "lower"}.get(way))):
        chosen = [own["mine"], own["again"]] if metric == "score" else runs
        write_report(tracker, chosen[::order], folder / "way.html", metric=metric)
        page = (folder / "way.html").read_text(encoding="utf-8")
        assert re.findall(r"(\w+) than the baseline", page) == ([said] if said else [])


def test_questions_on_which_variants_disagree_come_first():
    scores = [[1.0, 0.0, 1.0, 0.0, math.nan], [1.0, 1.0, 0.0, 0.0, 1.0]]
    variants = [SimpleNamespace(name=name, scores={"em": own}) for name, own in zip("ab", scores, strict=True)]
    compared = SimpleNamespace(metric="em", variants=variants, names=["a", "b"], questions=list("12345"))
    assert worth_a_look(compared, 4) == {1: "right: b", 2: "right: a", 3: "none is right", 0: "all are right"}


@pytest.mark.parametrize("record", [None, [], {"step": 3, "outputs": [1], "inputs": "x", "depth": -1, "failure": {}}])
def test_a_record_of_any_shape_is_shown(record):
    assert shown_step(record, Corpus([])).depth == 0


def test_what_can_not_be_shown_is_one_line_and_no_file(store, monkeypatch, capsys):
    folder, _, [first, _], _ = store
    monkeypatch.chdir(folder)
    where = f"tracking.uri=sqlite:///{folder}/mlflow.db"

    def hop(*words):
        monkeypatch.setattr(sys, "argv", ["hop", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    for words, says in [
        (["0" * 32], "not in sqlite"),
        ([first, "--split", "test"], "has no answers on test"),
        ([first, "--metric", "nothing"], "no scores of 'nothing'"),
        ([first, "--out", str(folder)], "a folder"),
        ([first, "--out", "none/there.html"], "no folder"),
    ]:
        code, out, err = hop("report", *words, where)
        assert (code, out) == (2, ""), err
        assert says in err.splitlines()[-1]
    assert not (folder / "report.html").exists()
    code, out, _ = hop("report", first, where, "--json")
    assert (code, json.loads(out)["n"]) == (0, COUNT)
    assert (folder / "report.html").exists()


def test_runs_without_a_question_in_common_can_not_be_compared(store):
    _, tracker, [first, _], _ = store
    with tracker.run("eval", "strange") as run:
        mlflow.log_metric("dev/f1", 0.0)
        mlflow.log_table(pd.DataFrame([{"id": "x", "question": "Who?", "f1": 0.0}]), "predictions/dev-after.json")
    with pytest.raises(UserError, match="no question of dev in common"):
        compare_variants(tracker, [first, run.info.run_id])


def test_runs_without_the_metric_are_left_out_unless_they_are_asked_for(store):
    folder, *_ = store
    words = ["data.dev=2", "tracking.experiment=some-without"]
    having = [evaluate_variant(config(folder, *words, f"retriever.k={k}")) for k in (1, 3)]
    tracker = Tracker(having[0].config.tracking.uri, "some-without")
    with tracker.run("eval", "from memory") as run:
        mlflow.log_metric("dev/f1", 0.0)
        kept = tracker.predictions(having[0].run_id, "dev").table.drop(columns="recall")
        mlflow.log_table(kept, "predictions/dev-after.json")
    compared = compare_variants(tracker, metric="recall")
    assert [variant.run_id for variant in compared.variants] == [one.run_id for one in having]
    assert compared.notes == ["left out: 1 run of the experiment without scores of 'recall'"]
    assert len(compare_variants(tracker).variants) == 3
    with pytest.raises(UserError, match="no scores of 'recall' in common"):
        compare_variants(tracker, [having[0].run_id, run.info.run_id], metric="recall")


def test_an_evaluation_and_a_variant_have_a_view_in_a_notebook(store):
    folder, *_ = store
    variant = evaluate_variant(config(folder, "data.dev=2", "tracking.experiment=seen"))
    for shown in (variant._repr_html_(), variant.after._repr_html_()):
        assert "<table" in shown
        assert "recall" in shown
    assert variant.difference is None


def test_which_answers_are_right_is_not_said_by_the_passages(store):
    _, tracker, runs, _ = store
    assert judged_by(compare_variants(tracker, runs, metric="recall")) == "em"


def test_settings_that_would_take_the_scores_width_are_told_below_them(store):
    _, tracker, runs, _ = store
    compared = compare_variants(tracker, runs, metric="recall")
    shared = {"lm.default.model": "openai/m", "program.name": "rag"}
    first, second = compared.variants
    few = replace(compared, variants=[replace(first, settings=shared), replace(second, settings=shared)])
    assert [sheet.title for sheet in comparison_sheets(few)][-1] == "per question"
    more = shared | {"optimizer.name": "gepa", "lm.reflection.model": "openai/r", "optimizer.budget.lm_calls": "600"}
    many = replace(compared, variants=[replace(first, settings=shared), replace(second, settings=more)])
    scores, *_, told = comparison_sheets(many)
    assert not {"reflection.model", "LM"} & set(scores.header)
    assert told.rows[1][-1] == "optimizer.name=gepa, lm.reflection.model=openai/r, optimizer.budget.lm_calls=600"
    assert "budget.lm_calls" in scores_sheet(many).header


def test_what_a_run_lacks_of_a_language_model_is_one_difference():
    def run(**params):
        return SimpleNamespace(data=SimpleNamespace(params=params, tags={"hop.kind": "compile"}))

    base = {"lm.default.model": "openai/m", "program.name": "rag"}
    reflecting = base | {"lm.reflection.model": "openai/r", "lm.reflection.temperature": "1.0"}
    without, with_one = differing([run(**base), run(**reflecting)])
    assert (set(without), set(with_one)) == ({"lm.default.model"}, {"lm.default.model", "lm.reflection.model"})
    another = reflecting | {"lm.reflection.temperature": "0.5"}
    assert "lm.reflection.temperature" in differing([run(**reflecting), run(**another)])[0]
