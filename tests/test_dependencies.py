"""What is imported is declared: no package is there only because another one happens to bring it; and what is pinned is
pinned to the same version everywhere.
"""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from hoptimizer.models.weights.catalog import WEIGHTS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALLED = packages_distributions()

PACKAGES = ("common", "signatures", "models", "retrieval", "programs", "eval", "optimizers", "core")
DEVELOPMENT = ("tests", "benchmarks")
# Engines that a benchmark asks in environments of their own.
PEERS = {name: ["benchmarks/engine_worker.py"] for name in ("vllm", "xllamacpp")}
PEERS |= {name: ["benchmarks/pylate_worker.py"] for name in ("pylate", "sentence_transformers")}
# Modules of ours, which an installation or the folder itself brings.
OURS = {
    "hoptimizer",
    *(path.stem for folder in (*DEVELOPMENT, "examples", "docs/site") for path in (ROOT / folder).glob("*.py")),
}


def normalized(distribution):
    return re.sub(r"[-_.]+", "-", distribution).lower()


def declared(*extras):
    lines = [*PROJECT["dependencies"], *(line for e in extras for line in PROJECT["optional-dependencies"][e])]
    return {normalized(re.match(r"[\w.-]+", line)[0]) for line in lines}


def imported(path):
    """The top-level packages that a file imports, at its top or later, without the standard library's and ours."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - OURS


def undeclared(folder, *extras):
    """Imports of a folder's files that no declared distribution brings, each with its files."""
    missing = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in imported(path):
            brought_by = {normalized(distribution) for distribution in INSTALLED.get(name, [])}
            if not brought_by & declared(*extras):
                missing.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return missing


@pytest.mark.parametrize("folder", PACKAGES)
def test_the_package_imports_declared_dependencies_alone(folder):
    assert undeclared(folder, "next-plaid", "pdf", "postgres", "qdrant", "ray", "server") == {}


@pytest.mark.parametrize("folder", DEVELOPMENT)
def test_tests_and_benchmarks_import_dependencies_and_the_dev_extra_alone(folder):
    assert undeclared(folder, "dev") == (PEERS if folder == "benchmarks" else {})


def pinned(file):
    """The versions of a file's pins by package."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pins = re.findall(r"^([\w.-]+)==([^\s;\\]+)", "\n".join(lines), re.MULTILINE)
    assert len(dict(pins)) == len(pins), "a package is pinned twice"
    return {normalized(name): version for name, version in pins}


def test_the_lock_has_the_versions_of_the_constraints_and_a_hash_of_each():
    assert pinned("requirements.lock") == pinned("constraints.txt")
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=\w)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_everything_declared_is_pinned():
    assert declared(*PROJECT["optional-dependencies"]) <= pinned("constraints.txt").keys()


def test_the_table_of_licences_has_every_dependency_in_its_pinned_version():
    text = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| (\d\S*) \| (\S[^|]*) \|", text, re.MULTILINE)
    listed = {normalized(name): version for name, version, _ in rows}
    pins = pinned("constraints.txt")
    assert listed == {name: pins[name] for name in listed}
    assert declared(*(PROJECT["optional-dependencies"].keys() - {"dev"})) <= listed.keys()
    assert [name for name, _, licence in rows if licence.strip() == "unknown"] == []
    for weights in WEIGHTS.values():
        assert f"| {weights.name} | {weights.licence} |" in text
