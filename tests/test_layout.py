"""The tables of folders and rooms hold: what each may import, how large they may be, and that the wheel misses none."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from hoptimizer.programs import PROGRAMS

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

# Folder -> its rooms (sub-folders), each with those of its siblings that it may import.
ROOMS = {
    "retrieval": {"encoders": set(), "colbert": {"encoders"}, "dense": {"encoders"}, "engines": {"colbert"}},
    "programs": {"steps": set()},
    "models": {"weights": set(), "engine": {"weights"}, "small": {"engine", "weights"}},
    "eval": {
        "atlas": set(),
        "display": set(),
        "datasets": {"atlas"},
        "documents": {"datasets"},
        "synthesis": {"datasets"},
    },
    "optimizers": {
        "labels": set(),
        "prompt": {"labels"},
        "training": {"labels"},
        "training/retriever": set(),
        "tuning": {"labels", "training"},
    },
    "core": {
        "executors": {"tracking"},
        "genai": set(),
        "tracking": {"genai"},
        "comparison": {"tracking"},
        "report": {"comparison", "tracking"},
        "serving": {"tracking"},
        "study": {"comparison", "executors", "tracking"},
        "cli/screen": {"comparison", "study", "tracking"},
        "cli": {"cli/screen", "comparison", "report", "serving", "study", "tracking"},
    },
}
# The most imports, file to file, from one room of a folder into another.
MOST_ARROWS = {"models": 15, "optimizers": 40}
MOST_LINES = 300
MOST_MODULES = 15  # besides the methods, which have a file each


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """What a file imports, at its top or later: modules, and names from modules with the module before them."""
    return _names(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported_at_once(path: Path) -> set[str]:
    """What a file imports when it is imported itself."""
    return _names(_executed(ast.parse(path.read_text(encoding="utf-8"))))


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that an import executes: neither the bodies of functions, nor what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from _executed(child)


@cache
def modules() -> dict[str, Path]:
    """The files of the package by the name under which they are imported."""
    found = {}
    for path in (path for folder in FOLDERS for path in files(folder)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "core" else parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(("hoptimizer", *parts))] = path
    return found


def known_files(names: set[str]) -> set[Path]:
    """The package's own files among what is imported; of a name from a module, the module's."""
    owners = (name if name in modules() else name.rpartition(".")[0] for name in names)
    return {modules()[name] for name in owners if name in modules()}


def room(path: Path) -> str:
    """A file's room: the path of its folder within the top-level one, empty where it stands there itself."""
    return path.relative_to(ROOT).parent.as_posix().partition("/")[2]


def arrows(folder: str) -> list[tuple[Path, Path]]:
    """The imports, file to file, from one room of a folder into another."""
    pairs = [(path, target) for path in files(folder) for target in known_files(imported(path))]
    inside = [(path, target) for path, target in pairs if target.is_relative_to(ROOT / folder)]
    return [(path, target) for path, target in inside if room(path) and room(target) and room(path) != room(target)]


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


def test_the_version_without_a_tag_is_the_last_one_of_the_changelog():
    headings = re.findall(r"^## (\d.*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert project()["tool"]["setuptools_scm"]["fallback_version"] == headings[0]


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


def test_no_file_is_too_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in modules().values()}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_no_folder_holds_too_many_modules():
    for folder in {path.parent for path in modules().values()}:
        modules_of_methods = {program.__module__ for program in PROGRAMS.values()}
        methods = {path for name, path in modules().items() if name in modules_of_methods}
        count = sum(path.name != "__init__.py" and path not in methods for path in folder.glob("*.py"))
        assert count <= MOST_MODULES, f"{folder.relative_to(ROOT)} holds {count} modules"


def test_no_files_import_one_another_in_a_circle():
    try:
        TopologicalSorter({path: known_files(imported_at_once(path)) for path in modules().values()}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(str(path.relative_to(ROOT)) for path in reversed(error.args[1])))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_room_imports_only_what_its_row_of_the_table_allows(folder):
    rooms = ROOMS.get(folder, {})
    assert {room(path) for path in files(folder)} - {""} == set(rooms)
    for path, target in arrows(folder):
        assert room(target) in rooms[room(path)], f"{path.relative_to(ROOT)} imports {target.relative_to(ROOT)}"


@pytest.mark.parametrize("folder", ROOMS)
def test_the_table_allows_no_circle_of_rooms(folder):
    TopologicalSorter(ROOMS[folder]).prepare()


@pytest.mark.parametrize(("folder", "most"), MOST_ARROWS.items())
def test_rooms_know_little_of_one_another(folder, most):
    found = arrows(folder)
    assert len(found) <= most, "\n".join(
        f"{path.relative_to(ROOT)} -> {target.relative_to(ROOT)}" for path, target in found
    )
