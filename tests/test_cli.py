"""The command line: help that documents, JSON on stdout, and one clear line and exit code 2 for every mistake."""

import json
import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import mlflow
import pytest
from rich.console import Console

from hoptimizer.cli import main
from hoptimizer.cli.screen import tables
from hoptimizer.common.errors import ServiceError


@pytest.fixture
def hop(monkeypatch, capsys, tmp_path):
    """Runs ``hop`` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["hop", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


VERBS = [
    [],
    ["demo"],
    ["ask"],
    ["compile"],
    ["serve"],
    ["eval"],
    ["compare"],
    ["report"],
    ["study"],
    ["sync"],
    ["doctor"],
    ["data", "list"],
    ["data", "check"],
    ["data", "import"],
    ["data", "new"],
    ["models", "list"],
    ["models", "pull"],
    ["models", "serve"],
    ["index", "build"],
    ["index", "push"],
    ["index", "search"],
    ["index", "info"],
    ["index", "serve"],
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help_with_an_example(hop, verb):
    code, out, _ = hop(*verb, "--help")
    assert code == 0
    if verb:
        assert "Example" in out
        assert f"hop {' '.join(verb)}" in out
        assert "--json" in out


def test_the_version_is_that_of_the_installed_package(hop):
    assert hop("--version") == (0, f"hoptimizer {version('hoptimizer')}\n", "")


def folder(tmp_path, **changes):
    """A tiny valid data set with some of its files replaced."""
    from hoptimizer.eval.datasets.folder import new

    new(tmp_path / "d")
    for name, text in changes.items():
        (tmp_path / "d" / f"{name}.jsonl").write_text(text)
    return "data=d"


QUESTION = {"id": "q", "question": "Who?", "answers": ["I"]}


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "data=atlas", "data.dev=1", "program=direct", "lm.default.model=openai/x",
         "lm.default.api_base=http://127.0.0.1:9/v1", "lm.default.api_key=none"],
        ["index", "search", "x", "data=atlas", "retriever.url=http://127.0.0.1:9"],
        ["compare", "data=atlas", "tracking.uri=http://127.0.0.1:9"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_server_out_of_reach_is_one_line_and_exit_code_1(hop, words):
    code, out, err = hop(*words)
    last = [line for line in err.splitlines() if line.startswith("hop: ")]
    assert (code, len(last), out) == (1, 1, ""), err
    assert "127.0.0.1:9" in last[0]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"dev": ""}, ["dev.jsonl", "no questions"]),
        ({"dev": "{not json"}, ["dev.jsonl:1"]),
        ({"dev": json.dumps({"id": "q", "question": "Who?"})}, ["dev.jsonl:1", "answers"]),
        ({"dev": json.dumps(QUESTION | {"passages": ["no-such"]})}, ["dev.jsonl:1", "no-such"]),
        ({"corpus": json.dumps({"id": "a", "title": "A"})}, ["corpus.jsonl:1", "text"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_a_bad_data_line_is_named(hop, tmp_path, files, says):
    code, _, err = hop("compile", folder(tmp_path, **files), "program=direct")
    [line] = [line for line in err.splitlines() if line.startswith("hop: ")]
    assert code == 2
    for part in says:
        assert part in line, line
    assert not (tmp_path / "mlflow.db").exists(), "nothing is written before the data is read"


def test_check_shows_every_problem_and_exits_2(hop, tmp_path):
    folder(tmp_path, dev='{"id": "q"}\n{not json\n')
    code, out, _ = hop("data", "check", "d")
    assert code == 2
    assert "dev.jsonl:1" in out.replace("\n", "")
    assert "dev.jsonl:2" in out.replace("\n", "")


def test_a_folder_is_started_checked_and_not_overwritten(hop):
    assert hop("data", "new", "mine", "--json")[0] == 0
    code, out, _ = hop("data", "check", "mine", "--json")
    assert code == 0
    assert json.loads(out)["problems"] == []
    code, _, err = hop("data", "new", "mine")
    assert code == 2
    assert "mine" in err


def test_search_prints_one_json_object(hop):
    code, out, _ = hop("index", "search", "capital of France", "data=atlas", "retriever=bm25", "--json")
    assert code == 0
    assert len(json.loads(out)["passages"]) == 4


def test_scores_of_fused_places_can_be_told_apart(hop):
    fused = ["retriever=hybrid", "retriever.of=[bm25, bm25]", "retriever.k=3"]
    code, out, _ = hop("index", "search", "capital of France", "data=atlas", *fused)
    scores = re.findall(r"^0\.\d+", out, re.MULTILINE)
    assert (code, scores) == (0, ["0.03279", "0.03226", "0.03175"])


def test_a_mistake_in_a_retriever_of_ones_own_is_one_line_of_a_search(hop, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mistaken.py").write_text(
        "from hoptimizer.retrieval import Retriever\n\n\n"
        "class Mistaken(Retriever):\n"
        "    def __init__(self, corpus): pass\n"
        "    def search(self, queries, k): return []\n"
    )
    code, out, err = hop("index", "search", "Who?", "data=atlas", "retriever=mistaken:Mistaken")
    assert (code, out) == (2, "")
    assert "Mistaken.search: expected a list of Passage" in err.splitlines()[-1]


QUICK = ["data=atlas", "retriever=bm25", "program.reader=none"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["ask", "Who?", "program=rag"], "rag · local/smollm2-135m-instruct · bm25 k=4 · atlas (all passages)"),
        (
            ["eval", "data.dev=2", "program=efficient_rag", "retriever.k=3", "lm.reader=local/smollm2-135m-instruct"],
            "efficient_rag (no labeler yet: retrieves once) · local/smollm2-135m-instruct, reader "
            "local/smollm2-135m-instruct · bm25 k=3 · atlas (dev 2)",
        ),
        (
            ["eval", "data.dev=2", "program=efficient_rag", "lm.labeler=local/smollm2-135m-instruct"],
            "efficient_rag · local/smollm2-135m-instruct, labeler local/smollm2-135m-instruct · bm25 k=10 · "
            "atlas (dev 2)",
        ),
        (
            ["compile", "data.train=3", "data.dev=2", "optimizer=labeled_few_shot", "program=direct"],
            "direct · local/smollm2-135m-instruct · atlas (train 3, dev 2)",
        ),
        (["index", "search", "Who?", "retriever.k=2"], "bm25 k=2 · atlas (all passages)"),
        (["index", "build"], "bm25 · atlas (all passages)"),
        (["index", "info"], "bm25 · atlas (all passages)"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:20],
)
def test_the_first_line_on_stderr_says_what_is_used(hop, words, line):
    _, out, err = hop(*words, *QUICK, "--json")
    assert re.sub(r"\(\d+ passages", "(all passages", err.splitlines()[0]) == line
    assert "·" not in out


def test_the_first_line_of_a_studys_cells_has_their_name(hop, tmp_path):
    (tmp_path / "s.yaml").write_text("grid: {program: [rag, efficient_rag]}\n")
    code, out, err = hop("study", "s.yaml", *QUICK, "data.dev=2", "--json")
    assert code == 0
    told = [line for line in err.splitlines() if "·" in line]
    names = "program=rag: rag", "program=efficient_rag: efficient_rag (no labeler yet: retrieves once)"
    assert [line.partition(" · ")[0] for line in told] == [*names]
    assert [line.split(" · ")[2] for line in told] == ["bm25 k=4", "bm25 k=10"]
    runs = [cell["run_id"] for cell in json.loads(out)["cells"]]
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    assert [client.get_run(run).data.params["retriever.k"] for run in runs] == ["4", "10"]
    code, _, err = hop(
        "eval", "--run", runs[1], "retriever=colbert", "retriever.url=http://me:pw@127.0.0.1:9", "--json"
    )
    assert code == 1, "the server is out of reach"
    assert "colbert http://127.0.0.1:9 k=10" in err
    assert "pw" not in err


@pytest.mark.parametrize("has_test", [True, False])
def test_the_command_that_a_compile_names_next_can_be_given(hop, tmp_path, has_test):
    data = folder(tmp_path)
    if not has_test:
        (tmp_path / "d" / "test.jsonl").unlink()
    code, out, err = hop(
        "compile", data, "program=direct", "optimizer=labeled_few_shot", "lm.default=local/smollm2-135m-instruct"
    )
    assert code == 0, err
    [line] = [line for line in out.splitlines() if line.startswith("Next: ")]
    _, *words = shlex.split(line.removeprefix("Next: "))
    assert words[:1] == (["eval"] if has_test else ["ask"])
    assert hop(*words)[0] == 0


def test_what_another_name_drops_is_told_on_stderr(hop, tmp_path):
    (tmp_path / "my.yaml").write_text("data: atlas\nprogram: {name: ircot, max_steps: 3}\n")
    _, _, err = hop("ask", "Who?", "my.yaml", "program=rag", "program.reader=none", "retriever=bm25")
    assert "program: rag takes the place of ircot, whose max_steps is dropped" in err


@pytest.mark.parametrize("on_path", [True, False])
def test_the_demo_ends_with_the_commands_that_go_on(monkeypatch, tmp_path, capsys, on_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) if on_path else str(tmp_path))
    scores = {"direct": (0.5, False), "ircot": (0.4, True), "rag": (0.3, True)}
    variants = [
        {"run_id": f"{number}" * 32, "program": name, "metrics": {"f1": f1}, "compiled": compiled}
        for number, (name, (f1, compiled)) in enumerate(scores.items())
    ]
    Console(width=80).print(tables.after_demo({"variants": variants}))
    _, *commands = capsys.readouterr().out.strip().splitlines()
    assert commands[0].split()[:2] == ([".", ".venv/bin/activate"] if not on_path else ["hop", "ask"])
    assert "hop ask --run 11111111  asks the best compiled one (ircot)" in commands[-3]
    assert [command.split()[1] for command in commands[-3:]] == ["ask", "ui", "compile"]


def test_the_demos_table_fits_80_columns_and_its_runs_can_be_copied(capsys):
    names = ("em", "f1", "recall", "passages", "lm_calls", "retrievals", "seconds_per_question")
    metrics = dict.fromkeys(names[:3], 1.0) | dict.fromkeys(names[3:], 10.0)
    shown = [("rag", False), ("rag", True), ("efficient_rag", False), ("efficient_rag", True)]
    runs = [f"{number:032x}"[::-1] for number in range(len(shown))]
    result = {
        "variants": [
            {"run_id": run, "program": program, "compiled": compiled, "n": 60, "metrics": metrics}
            for (program, compiled), run in zip(shown, runs, strict=True)
        ],
        "blind_guess": {"em": 0.25, "f1": 0.26},
        "comparisons": [],
        "parse_failures": 0,
        "seconds": 500.0,
    }
    table, *_ = tables.demo(result)
    Console(width=80).print(table)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    heads = ["variant", "run", "em", "f1", "recall", "passages", "LM", "calls", "s/question"]
    assert lines[0] == heads
    assert lines[1] == ["blind", "guess", "25.0", "26.0", *"––––"]
    assert [line[1] for line in lines[2:]] == [run[:8] for run in runs]
    assert lines[-1] == ["compiled", "30000000", "100.0", "100.0", "100.0", "10.00", "10.00", "10.00"]


@pytest.mark.parametrize(("command", "said"), [("compile", True), ("ask", False)])
@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (ServiceError("no answer: is it up?"), 1)])
def test_long_work_that_ends_says_how_it_goes_on(monkeypatch, capsys, command, said, end, code):
    def ends(prog_name):
        raise SystemExit(code) if isinstance(end, KeyboardInterrupt) else end

    monkeypatch.setattr("hoptimizer.cli.app.app", ends)
    monkeypatch.setattr(sys, "argv", ["hop", command, "data=atlas"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert ("give the same command again, and it goes on from there" in capsys.readouterr().err) is said
