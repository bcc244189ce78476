"""Making the file of a new SQLite store."""

import shutil
import tempfile
from pathlib import Path

from mlflow import MlflowClient

from hoptimizer.tracking.holding import SQLITE


def make_store(uri: str) -> None:
    """Make the file of a SQLite store where there is none; any other store is left alone.

    MLflow makes its tables in a hundred steps, and can't open a store that was left between two of them, by a full disk
    or a kill. So they are made in a folder beside it, and the whole file is moved to its place at the end.

    Args:
        uri: the store's tracking URI.

    Raises:
        OSError: or what MLflow raises, where the file can't be made.
    """
    file = Path(uri.removeprefix(SQLITE)).absolute()
    if not uri.startswith(SQLITE) or "?" in uri or ":memory:" in uri or file.exists():
        return
    prefix = f".{file.name}.making-"
    for left in file.parent.glob(f"{prefix}*"):  # by a kill
        shutil.rmtree(left, ignore_errors=True)
    # The name is new each time: MLflow keeps its connections to a store that it could not make.
    with tempfile.TemporaryDirectory(prefix=prefix, dir=file.parent) as folder:
        draft = Path(folder) / file.name
        MlflowClient(tracking_uri=f"{SQLITE}{draft}").search_experiments(max_results=1)
        draft.replace(file)
