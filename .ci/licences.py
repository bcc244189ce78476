"""Prints docs/licences.md: the licences of what hoptimizer and its extras need at run time, of the weights, and which
are copyleft.

    .venv/bin/python .ci/licences.py > docs/licences.md

It is for an environment with the extras `dev`, which has the others, and `gpu`. What is installed says its licence
itself, in its metadata; where it says none, the first line of its licence file that names one does.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from hoptimizer.models.weights.catalog import WEIGHTS

ROOT = Path(__file__).parents[1]
# GPL, LGPL, AGPL, MPL, EPL, EUPL, CDDL, and Creative Commons' share-alike.
COPYLEFT = re.compile(r"\b[AL]?GPL|\bMPL|Mozilla|\bEPL|\bEUPL|\bCDDL|-SA\b")
STRONG = re.compile(r"\b[AL]?GPL")
# By the words of the licence's own text, as its file has them.
TEXTS = {
    "Permission is hereby granted, free of charge": "MIT",
    "Mozilla Public License": "MPL-2.0",
    "GNU ": "GPL or LGPL: look at the file",
    "Apache License": "Apache-2.0",
    "Redistribution and use in source and binary forms": "BSD",
}

HEAD = """# Licences

hoptimizer is under Apache-2.0. This is what it needs at run time, with the versions of `constraints.txt`, and what it
can fetch. Made by `.venv/bin/python .ci/licences.py > docs/licences.md`; `tests/test_dependencies.py` makes sure that
the versions are the pinned ones.
"""
DUTIES = """
Under MPL-2.0, who changes a file of theirs and passes it on publishes that file. Under the LGPL, who passes the library
on gives its source as well, and lets others replace it. Who uses them owes nothing.

## Packages
"""
TABLE = "| package | version | licence | copyleft |"
NVIDIA = """
On Linux, PyPI's `torch` also brings `triton` and NVIDIA's CUDA libraries (`nvidia-*`, `cuda-*`), which the CPU build
that the table was made with does without, so that they are not in it. **They are not all free software:** the metadata
of `nvidia-nvtx`, for one, says "Other/Proprietary License". Look at their licences before passing them on.
"""
EXTRAS_HEAD = f"""
## Packages of the extras

What extras bring besides, such as `pip install 'hoptimizer[postgres]'`; `dev`, for work on the project itself, is left
out.

{TABLE} extra |
|---|---|---|---|---|"""
WEIGHTS_HEAD = """
## Weights

What `hop models pull` fetches, by the name in the store. The ColBERT checkpoint that comes with the package,
`retrieval/assets/minilm-colbert.safetensors`, is a projection trained for this project, and is under its licence.

| weights | licence | copyleft |
|---|---|---|"""


def installed(lines: Iterable[str]) -> dict[str, Distribution]:
    """What is installed of what these requirements name, and of what that needs, by name in lower case."""
    wanted = [Requirement(line) for line in lines]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        one = wanted.pop()
        key = (one.name.lower(), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            package = distribution(one.name)
        except PackageNotFoundError:
            sys.exit(f"{one.name} is not installed; make .venv first: pip install -c constraints.txt -e '.[dev,gpu]'")
        found[package.metadata["Name"].lower()] = package
        for line in package.requires or ():
            needed = Requirement(line)
            extras = one.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(needed)
    return dict(sorted(found.items()))


def licence(package: Distribution) -> str:
    """A package's licence: as an SPDX expression, in a few words, or by its classifiers or its licence file."""
    metadata = package.metadata
    stated = metadata.get("License-Expression") or metadata.get("License") or ""
    if stated and "\n" not in stated:
        return stated
    classifiers = [
        line for line in metadata.get_all("Classifier") or () if line.startswith("License :: OSI Approved ::")
    ]
    if classifiers:
        return "; ".join(line.rpartition(" :: ")[2] for line in classifiers)
    texts = [stated] + [
        file.read_text(encoding="utf-8")
        for file in package.files or ()
        if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")) and ".dist-info" in str(file)
    ]
    named = [name for words, name in TEXTS.items() if any(words in " ".join(text.split()) for text in texts)]
    return f"{named[0]} (by its licence file)" if named else "unknown"


def row(package: Distribution, *more: str) -> str:
    """A package's row of a table, and what its further columns say."""
    text = licence(package)
    cells = (package.metadata["Name"], package.version.partition("+")[0], text, "yes" if COPYLEFT.search(text) else "")
    return f"| {' | '.join([*cells, *more])} |"


def those_under(kind: re.Pattern[str], packages: Mapping[str, Distribution]) -> str:
    """The names of those packages whose licences are of a kind."""
    return ", ".join(one.metadata["Name"] for one in packages.values() if kind.search(licence(one))) or "none"


def main() -> None:
    """Print the page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    always = installed(project["dependencies"])
    more: dict[str, Distribution] = {}
    brought_by: dict[str, list[str]] = {}  # extras by the name of a package
    for extra, lines in project["optional-dependencies"].items():
        if extra != "dev":
            own = {name: package for name, package in installed(lines).items() if name not in always}
            more |= own
            for name in own:
                brought_by.setdefault(name, []).append(extra)
    print(HEAD)
    print(f"- {len(always)} packages. GPL, LGPL or AGPL: {those_under(STRONG, always)}.")
    print(f"  Copyleft of any kind: {those_under(COPYLEFT, always)}.")
    print(f"- {len(more)} more with all extras. GPL, LGPL or AGPL: {those_under(STRONG, more)}.")
    print(f"  Copyleft of any kind: {those_under(COPYLEFT, more)}.")
    print(f"{DUTIES}\n{TABLE}\n|---|---|---|---|")
    for package in always.values():
        print(row(package))
    print(NVIDIA + EXTRAS_HEAD)
    for name, package in sorted(more.items()):
        print(row(package, ", ".join(brought_by[name])))
    print(WEIGHTS_HEAD)
    for weights in sorted(WEIGHTS.values(), key=lambda one: one.name):
        print(f"| {weights.name} | {weights.licence} | {'yes' if COPYLEFT.search(weights.licence) else ''} |")


if __name__ == "__main__":
    main()
