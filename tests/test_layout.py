"""The folder table holds: what each folder may import, and that the wheel's package list misses none."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Folder -> the hoptimizer packages it may import (each may import itself).
MAY_IMPORT = {
    "common": set(),
    "signatures": set(),
    "models": {"common"},
    "retrieval": {"common", "models"},
    "programs": {"common", "signatures", "retrieval", "models"},
    "eval": {"common", "signatures", "programs", "retrieval", "models"},
    "optimizers": {"common", "signatures", "models", "retrieval", "programs", "eval"},
}
FOLDERS = [*MAY_IMPORT, "core"]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """The modules that a file imports, at its top or later."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_what_its_row_of_the_table_allows(folder):
    for path in files(folder):
        parts = [name.split(".") for name in imported(path) if name.split(".")[0] == "hoptimizer"]
        used = {part[1] if len(part) > 1 else "core" for part in parts}
        assert used <= MAY_IMPORT[folder] | {folder}, f"{path} imports {used}"


def test_every_package_is_in_the_wheel():
    setuptools = project()["tool"]["setuptools"]
    found = {str(path.parent.relative_to(ROOT)).replace("/", ".") for folder in FOLDERS for path in files(folder)}
    found = {("hoptimizer." + name).replace("hoptimizer.core", "hoptimizer") for name in found}
    assert set(setuptools["packages"]) == found
    assert set(setuptools["package-dir"]) == found


def test_the_version_has_an_entry_in_the_changelog():
    assert f"## {project()['project']['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_dependency_is_pinned_in_the_constraints_file():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    lines = project()["project"]["dependencies"] + project()["project"]["optional-dependencies"]["dev"]
    for line in lines:
        name = next(part for part in line.replace(">", "=").replace("[", "=").split("=") if part)
        assert name.lower().replace("_", "-") in pinned, name
