"""Runs the notebooks of ``examples``, and keeps in them what their cells show, for those who read and don't run them.

    python benchmarks/notebooks.py [--json]

Each runs from top to bottom in a folder and with a home of its own, so that nothing is known from earlier runs, and
with the weights that are here. What reports progress is not kept, nor the text of what has a view in HTML.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from hoptimizer.common.paths import home
from reporting import benchmark_parser, show

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = ("own_data.ipynb", "three_models.ipynb")
# Seconds that a cell may take: the three models may have to be fetched.
LONGEST = 3600


def run(notebook: NotebookNode, folder: Path, longest: float = LONGEST) -> NotebookNode:
    """Run a notebook's cells in a folder, each for so many seconds at most."""
    NotebookClient(notebook, timeout=longest, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def shown(notebook: NotebookNode) -> NotebookNode:
    """A notebook that was run, with what its cells print or display, and nothing of the machine that it ran on."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text/html" in output.get("data", {}):
                    output.data = {"text/html": output.data["text/html"]}
    notebook.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": notebook.metadata.language_info.name},
    }
    return notebook


def main() -> None:
    """Run all, and write them with what they show."""
    args = benchmark_parser(__doc__).parse_args()
    seconds = {}
    for name in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for beside in EXAMPLES.iterdir():
                (folder / beside.name).symlink_to(beside)
            (folder / "home").mkdir()
            (folder / "home" / "models").symlink_to(home() / "models")
            start = time.perf_counter()
            with patch.dict(os.environ, HOPTIMIZER_HOME=str(folder / "home")):
                notebook = shown(run(nbformat.read(EXAMPLES / name, as_version=4), folder))
            seconds[name] = round(time.perf_counter() - start)
            nbformat.write(notebook, folder / "shown.ipynb")
            shutil.move(folder / "shown.ipynb", EXAMPLES / name)
    lines = (f"{name}: {taken} s" for name, taken in seconds.items())
    show({"seconds": seconds}, args.json, "\n".join(lines))


if __name__ == "__main__":
    main()
