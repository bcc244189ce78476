"""Prints docs/licences.md: the licences of what hoptimizer needs at run time, of the weights, and which are copyleft.

    .venv/bin/python .ci/licences.py > docs/licences.md

What is installed says its licence itself, in its metadata; where it says none, the first line of its licence file that
names one does.
"""

import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from hoptimizer.models.weights.catalog import WEIGHTS

ROOT = Path(__file__).parents[1]
# GPL, LGPL, AGPL, MPL, EPL, EUPL, CDDL, and Creative Commons' share-alike.
COPYLEFT = re.compile(r"\b[AL]?GPL|\bMPL|Mozilla|\bEPL|\bEUPL|\bCDDL|-SA\b")
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
NVIDIA = """
On Linux, PyPI's `torch` also brings `triton` and NVIDIA's CUDA libraries (`nvidia-*`, `cuda-*`), which the CPU build
that the table was made with does without, so that they are not in it. **They are not all free software:** the metadata
of `nvidia-nvtx`, for one, says "Other/Proprietary License". Look at their licences before passing them on.
"""
WEIGHTS_HEAD = """
## Weights

What `hop models pull` fetches, by the name in the store. The ColBERT checkpoint that comes with the package,
`retrieval/assets/minilm-colbert.safetensors`, is a projection trained for this project, and is under its licence.

| weights | licence | copyleft |
|---|---|---|"""


def runtime() -> dict[str, Distribution]:
    """What is installed of what the package needs, and of what that needs, by name in lower case."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]
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
            sys.exit(f"{one.name} is not installed; make .venv first (make test)")
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


def main() -> None:
    """Print the page."""
    rows = [
        (package.metadata["Name"], package.version.partition("+")[0], licence(package))
        for package in runtime().values()
    ]
    flagged = [name for name, _, text in rows if COPYLEFT.search(text)]
    strong = [name for name, _, text in rows if re.search(r"\b[AL]?GPL", text)]
    kind = f"**GPL, LGPL or AGPL: {', '.join(strong)}.**" if strong else "None is under GPL, LGPL or AGPL."
    print(HEAD)
    print(f"{len(rows)} packages. {kind} Marked as copyleft: {', '.join(flagged) or 'none'}. Where that is MPL-2.0,")
    print("who changes a file of theirs and passes it on publishes that file; who uses them owes nothing.\n")
    print("## Packages\n\n| package | version | licence | copyleft |\n|---|---|---|---|")
    for name, version, text in rows:
        print(f"| {name} | {version} | {text} | {'yes' if COPYLEFT.search(text) else ''} |")
    print(NVIDIA + WEIGHTS_HEAD)
    for weights in sorted(WEIGHTS.values(), key=lambda one: one.name):
        print(f"| {weights.name} | {weights.licence} | {'yes' if COPYLEFT.search(weights.licence) else ''} |")


if __name__ == "__main__":
    main()
