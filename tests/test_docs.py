"""What README and docs show works: their commands run, their Python runs, their YAML is valid."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from hoptimizer.common.paths import home
from hoptimizer.config import json_schema, load_config, make_config
from hoptimizer.eval.datasets.dataset import locate
from hoptimizer.study.cells import load_study

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_DOCUMENTS = ROOT / "docs" / "own-documents.md"
PARTS = ROOT / "examples" / "house_parts"
HOP = [sys.executable, "-m", "hoptimizer.cli"]
# Other tests run these.
ELSEWHERE = {"hop demo", "hop ui"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    # Where the example package is not installed, a dotted path finds it.
    env = os.environ | {"PYTHONPATH": str(PARTS)}
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{shlex.join(command)}\n{result.stderr[-2000:]}"
    return result.stdout


def write_files(page: Path, folder: Path) -> None:
    """YAML that starts with its file's name in a comment is a file that the page's commands read."""
    for text in blocks(page, "yaml"):
        if named := re.match(r"# (\S+\.yaml)\n", text):
            (folder / named[1]).write_text(text, encoding="utf-8")


SLOW = pytest.mark.slow(reason="real commands on real models: what pages show is what users type")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=() if page.stem == "README" else SLOW)
        for page in PAGES
        if page != OWN_DOCUMENTS and (blocks(page, "sh") or blocks(page, "python"))
    ],
)
def test_the_commands_and_the_python_of_a_page_run(page, tmp_path):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    write_files(page, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in "".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if not words or line in ELSEWHERE or words[0] in ("git", "cd"):
            continue
        if words[0] == "make":
            assert words[1] in targets
            continue
        assert words[0] == "hop", line
        run(HOP + words[1:], tmp_path)
    for code in blocks(page, "python"):
        if "RUN_ID" in code:
            code = code.replace("RUN_ID", _compiled(tmp_path))
        run([sys.executable, "-c", code], tmp_path)


@pytest.mark.slow(reason="real commands on real models of up to 1.5 billion parameters")
def test_documents_with_and_without_questions_lead_to_compared_variants_in_ten_minutes(tmp_path, monkeypatch):
    """Three commands, and four, on a machine that has the models and knows nothing from earlier runs."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(home() / "models")
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    write_files(OWN_DOCUMENTS, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block, questions in zip(blocks(OWN_DOCUMENTS, "sh"), (11, 1), strict=True):
        start = time.monotonic()
        *_, shown = [run(HOP + shlex.split(line)[1:], tmp_path) for line in block.splitlines()]
        assert time.monotonic() - start < 600
        assert f"own-study on test, n = {questions}" in shown
        calls = dict(re.findall(r"^(direct|rag|rag, compiled)  .*  (\d\.\d\d)$", shown, re.MULTILINE))
        assert calls == dict.fromkeys(("direct", "rag", "rag, compiled"), "1.00")


def _compiled(folder: Path) -> str:
    words = ["data=atlas", "data.train=4", "data.dev=1", "program=direct", "optimizer=labeled_few_shot"]
    return json.loads(run([*HOP, "compile", *words, "--json"], folder))["run_id"]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=lambda page: page.stem)
def test_the_yaml_of_a_page_is_a_valid_config(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PARTS))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ferry").symlink_to(locate("atlas"))  # what a page imports first
    for text in blocks(page, "yaml"):
        values = {"data": "atlas"} | yaml.safe_load(text)
        if "base" in values:
            (tmp_path / "study.yaml").write_text(text, encoding="utf-8")
            load_study(tmp_path / "study.yaml")
            continue
        if "reason" in values.get("lm", {}):
            values["program"] = "ircot"
        make_config(values)


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_example_config_is_valid(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"hop data import .* --out (\S+)", file.read_text(encoding="utf-8")):
        (tmp_path / name).symlink_to(locate("atlas"))  # what the file says to import first
    (load_study if file.stem.startswith("study") else load_config)(file)


def test_the_schema_for_editors_is_the_current_one():
    committed = json.loads((ROOT / "configs" / "schema.json").read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(json_schema())), (
        'make it again: python -c "import json; from hoptimizer.config import json_schema; '
        'print(json.dumps(json_schema(), indent=1))" > configs/schema.json'
    )


def test_every_reference_in_the_schema_leads_to_a_definition():
    text = (ROOT / "configs" / "schema.json").read_text(encoding="utf-8")
    assert set(re.findall(r'"#/\$defs/(\w+)"', text)) <= set(json.loads(text)["$defs"])


def test_every_link_between_pages_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_files_of_other_tools_are_yaml_and_call_hop_as_it_is():
    found = [whole for page in PAGES for text in blocks(page, "yml") for whole in yaml.safe_load_all(text)]
    assert len(found) == 4
    [job] = [one for one in found if one.get("kind") == "RayJob"]
    command, *words = shlex.split(job["spec"]["entrypoint"])
    assert (command, words[:2]) == ("hop", ["eval", "/data/my.yaml"])
    config = load_config(None, ["data=atlas", *words[2:]])
    assert (config.executor.name, config.executor.tasks) == ("ray", 8)
    groups = [job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
    assert [group["template"]["spec"]["containers"][0]["name"] for group in groups] == ["ray", "ray"]
