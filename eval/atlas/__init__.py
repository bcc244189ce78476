"""The bundled data set ``atlas``: questions over real-world facts, in the project's own sentences.

The folder ``data`` holds its corpus and splits. ``python -m hoptimizer.eval.atlas.generate`` makes them from the
fact tables beside it, the same bytes on every run.
"""

from pathlib import Path

DATA: Path = Path(__file__).parent / "data"
