"""Benchmarks start from anywhere, explain themselves, and are named rightly where the docs name them."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
BENCHMARKS = sorted(FOLDER.glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md")), *BENCHMARKS]

COMMAND = re.compile(r"benchmarks/(\w+\.py)([^`|;\n]*)")


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Imports a benchmark by its path as `python FILE` does, in a folder that is not the repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))

    def imported(path):
        spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return imported


def described(module, monkeypatch, capsys):
    """What a benchmark's `--help` prints, and its exit code; nothing where it takes no arguments."""
    if not hasattr(module, "main"):
        return "", 0
    monkeypatch.setattr(sys, "argv", [module.__file__, "--help"])
    with pytest.raises(SystemExit) as end:
        module.main()
    return capsys.readouterr().out, end.value.code


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_imported_and_explains_every_option_that_pages_name(load, monkeypatch, capsys, path):
    help_text, code = described(load(path), monkeypatch, capsys)
    assert code == 0
    named = [
        option
        for page in PAGES
        for name, rest in COMMAND.findall(page.read_text(encoding="utf-8"))
        if name == path.name
        # What stands behind a bare `--` is another program's.
        for option in re.findall(r"--\w[\w-]*", rest.partition(" -- ")[0])
    ]
    for option in named:
        assert option in help_text, option


def test_every_benchmark_that_a_page_names_is_there():
    for page in PAGES:
        for name, _ in COMMAND.findall(page.read_text(encoding="utf-8")):
            assert (FOLDER / name).exists(), f"{page.name}: benchmarks/{name}"


def test_a_benchmark_prints_one_json_object_from_any_folder(tmp_path):
    command = [sys.executable, str(FOLDER / "ra_isf_latency.py"), "--json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    # The ratios, which a busy machine can lift over the limit, are not what is tested here.
    assert result.returncode in (0, 1), result.stderr
    flows = json.loads(result.stdout)["flows"]
    assert [(flow["lm_calls"], flow["chain"]) for flow in flows] == [(2, 2), (7, 3), (38, 11)]


def test_a_mistake_ends_a_benchmark_with_one_line(load, monkeypatch, capsys, tmp_path):
    module = load(FOLDER / "retrieval.py")
    monkeypatch.setattr(sys, "argv", ["retrieval.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 2
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}: no folder .*\n", capsys.readouterr().err)


def test_a_thread_counts_for_the_innermost_part_that_it_works_for(load):
    benchmark = load(FOLDER / "seconds_by_part.py")
    lm, bm25 = (importlib.util.find_spec(f"hoptimizer.{name}").origin for name in ("models.lm", "retrieval.bm25"))
    own, library = f"ask ({lm}:7)", "f (/x/site-packages/torch/nn.py:1)"
    lines = [
        f"run (/usr/lib/threading.py:1);{own};search ({bm25}:3);{library} 30",
        f"{own};<lambda> (/x/site-packages/six.py:1) 10",
        f"{own};load (<frozen importlib._bootstrap>:1);<module> ({bm25}:1) 5",
        f"{own};<module> ({bm25}:1);make (/usr/lib/enum.py:2) 2",
        f"{own};load (<frozen importlib._bootstrap>:1);{library} 1",
        f"run (/usr/lib/threading.py:1);{library} 2",
    ]
    parts = benchmark.by_part("\n".join(lines) + "\n")
    assert [(part.name, part.seconds, part.share) for part in parts] == [
        ("retrieval", 0.6, 0.6),
        ("models", 0.2, 0.2),
        ("imports", 0.16, 0.16),
        ("threads of libraries", 0.04, 0.04),
    ]
    assert parts[0].libraries == [("torch", 1.0)]
    assert parts[1].libraries == [("six", 1.0)]
    assert dict(parts[2].libraries) == {"hoptimizer": 5 / 8, "Python": 2 / 8, "torch": 1 / 8}


def test_the_page_of_all_benchmarks_has_what_was_measured_and_names_the_rest(load, monkeypatch, capsys, tmp_path):
    page = load(FOLDER / "all.py")
    monkeypatch.setattr(page, "machine", lambda: "two cores")
    monkeypatch.setattr(page, "BENCHMARKS", {"growth.py --help": "Growth.", "predictions.py --nope": "Fails."})
    monkeypatch.setattr(sys, "argv", ["all.py", "--data", "none", "--out", "page.md"])
    for _ in range(2):  # the second time, what was measured is taken from where it is kept
        with pytest.raises(SystemExit) as end:
            page.main()
        assert end.value.code == 2
        assert "predictions.py ended with exit code 2" in capsys.readouterr().err
    head, growth, lacking = (tmp_path / "page.md").read_text(encoding="utf-8").split("\n## ")
    assert "two cores" in head
    assert growth.startswith("`python benchmarks/growth.py --help`\n\nGrowth.\n\n```text\nusage: growth.py")
    assert lacking == "`python benchmarks/predictions.py --nope`\n\nFails.\n\nNot measured yet.\n"
    [kept] = (tmp_path / ".benchmarks").iterdir()
    assert "Four sizes each" in kept.read_text(encoding="utf-8")
