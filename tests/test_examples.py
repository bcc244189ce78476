"""Every public class and function has a docstring of its own with an example, and the examples run."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import dspy
import pytest

FACES = [
    "hoptimizer",
    *(f"hoptimizer.{name}" for name in ("signatures", "models", "retrieval", "programs", "eval", "optimizers")),
]
PARSER = doctest.DocTestParser()


def explained(face: str, name: str) -> bool:
    """Whether a public name is a class or function, rather than a table, a constant or a type's other name."""
    value = getattr(import_module(face), name)
    return inspect.isclass(value) or inspect.isroutine(inspect.unwrap(value))


NAMES = [(face, name) for face in FACES for name in import_module(face).__all__ if explained(face, name)]


def docstring(face: str, name: str) -> str:
    """The docstring that explains a public name: its own, or the package's for a signature, whose own is a prompt."""
    value = getattr(import_module(face), name)
    if inspect.isclass(value) and issubclass(value, dspy.Signature):
        return import_module(face).__doc__ or ""
    return (vars(value).get("__doc__") if inspect.isclass(value) else inspect.unwrap(value).__doc__) or ""


@pytest.mark.parametrize(("face", "name"), NAMES, ids=lambda part: part)
def test_a_public_name_has_an_example_that_runs(face, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = docstring(face, name)
    examples = PARSER.get_examples(text)
    assert any(name in example.source for example in examples), f"{face}.{name} has no example in its docstring"
    test = PARSER.get_doctest(text, {}, f"{face}.{name}", None, 0)
    told: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(
        test, out=told.append
    )
    assert not told, "".join(told)


def test_every_face_explains_names_without_repetition():
    for face in FACES:
        names = import_module(face).__all__
        assert len(set(names)) == len(names)
        assert any(of == face for of, _ in NAMES)


def test_every_public_name_has_a_place_among_the_pages_of_the_api():
    folder = Path(__file__).parents[1] / "docs" / "api"
    pages = "".join(file.read_text() for file in folder.glob("*.md"))
    assert [face for face in FACES if f"::: {face}\n" not in pages] == []
    [members] = re.findall(r"members: \[(.*)\]", pages)
    assert sorted(members.split(", ")) == sorted(import_module("hoptimizer").__all__)
