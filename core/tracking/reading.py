"""What is read of the runs of a store."""

import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException

from hoptimizer.common.errors import UserError
from hoptimizer.stored import read_stored, stored_config, stored_state
from hoptimizer.tracking.downloading import download
from hoptimizer.tracking.naming import (
    CONFIG,
    KIND,
    NO_VARIANTS,
    OF_UNCOMPILED,
    PREFIX,
    STARTED_FROM,
    STATE,
    parts_tag,
    predictions_file,
    without_fold,
)
from hoptimizer.tracking.server import answering, store_errors
from hoptimizer.tracking.settings import UnknownRun

FINISHED = " and attributes.status = 'FINISHED'"
"""The end of a search for finished runs alone."""

SPENT = {"calls": ("compile_calls", 1.0), "seconds": ("compile_minutes", 1 / 60)}
"""What a compile has spent: the name that tables have for it, and the unit."""


def oldest_first(
    client: mlflow.MlflowClient, experiments: Sequence[str], words: str = "", view: int = ViewType.ACTIVE_ONLY
) -> Iterator[Run]:
    """All runs that a search finds, which MLflow gives a thousand at a time.

    Args:
        client: of the store.
        experiments: ids of those that are searched.
        words: what is sought, as MLflow's searches have it.
        view: whether deleted runs are sought.
    """
    token = None
    while True:
        page = client.search_runs(experiments, words, view, order_by=["attributes.start_time ASC"], page_token=token)
        yield from page
        if not (token := page.token):
            return


@dataclass(frozen=True)
class Predictions:
    """A run's answers on one split, as they were logged.

    Attributes:
        split: the split's name.
        data: digest of the data set, which says whether two runs answered the same questions.
        table: one row for each question: ``id``, ``question``, ``type``, ``hops`` (how many), ``answers``, ``answer``,
            ``failure`` and a column for each score.
    """

    split: str
    data: str
    table: pd.DataFrame


class StoredRuns:
    """The runs of one experiment in an MLflow store.

    All of it raises :class:`~hoptimizer.tracking.server.Unreachable` where the store's server gives no answer.

    Args:
        uri: the tracking URI.
        client: of that store.
        experiment: the experiment's name; there may be none of it.
    """

    def __init__(self, uri: str, client: mlflow.MlflowClient, experiment: str) -> None:
        self.uri, self.client, self.experiment_name = uri, client, experiment

    @staticmethod
    def is_compiled(run: Run) -> bool:
        """Whether a run holds or scored a compiled program."""
        tags = run.data.tags
        return tags.get(KIND) == "compile" or (STARTED_FROM in tags and OF_UNCOMPILED not in tags)

    def config_values(self, run_id: str) -> dict[str, Any]:
        """The config of a run as plain data.

        Raises:
            UserError: there is no such run, or hoptimizer did not make it.
        """
        return stored_config(self._read(self.get(run_id), CONFIG), f"run {run_id}")

    def load_state(self, run_id: str) -> dict[str, Any]:
        """The state of a run's program."""
        return stored_state(self._read(self.get(run_id), STATE), f"run {run_id}")

    def read_text(self, run_id: str, path: str) -> str:
        """A text that a run keeps.

        Args:
            run_id: the run.
            path: of the artifact.

        Raises:
            UserError: there is no such run, or it has no such text.
        """
        return self._read(self.get(run_id), path)

    def get(self, run_id: str) -> Run:
        """A run by its id.

        Raises:
            UserError: there is none.
        """
        try:
            with answering(self.uri):
                return self.client.get_run(run_id)
        except MlflowException as error:
            raise UnknownRun(run_id, self.uri) from error

    def whole_id(self, start: str) -> str:
        """The id of the run whose id starts so, as tables show it.

        Raises:
            UserError: there is none, or more than one.
        """
        found = []
        if start.isalnum():
            with answering(self.uri):
                experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
                found = self.client.search_runs(experiments, f"attributes.run_id LIKE '{start}%'", max_results=2)
        if len(found) > 1:
            raise UserError(f"run {start!r}: the ids of several runs start so; give more of it")
        if not found:
            raise UnknownRun(start, self.uri)
        return found[0].info.run_id

    def _read(self, run: Run, path: str) -> str:
        source = f"run {run.info.run_id}"
        with tempfile.TemporaryDirectory() as folder:
            try:
                with answering(self.uri):
                    local = download(run.info.artifact_uri, path, self.uri, Path(folder))
            except store_errors(OSError) as error:
                raise UserError(
                    f"{source} has no {path}; give a run of `hop compile`, or of an uncompiled program's `hop eval`"
                ) from error
            if not local.is_file():
                raise UserError(f"{source}: {path}: expected a file; give a run that `hop compile` made")
            return read_stored(local, source)

    def predictions(self, run_id: str, split: str) -> Predictions | None:
        """What a run answered on a split, or ``None`` where it was not asked."""
        run = self.get(run_id)
        if f"{split}/f1" not in run.data.metrics:
            return None
        tag = parts_tag(split, "after")
        parts = run.data.tags.get(tag, "1")
        if not re.fullmatch("[1-9][0-9]{0,5}", parts):
            raise UserError(f"run {run_id}: tag {tag}: expected a number of files, got {parts[:50]!r}; score it again")
        tables = [self._table(run, predictions_file(split, "after", part)) for part in range(1, int(parts) + 1)]
        return Predictions(split, run.data.tags.get(PREFIX + "data_digest", ""), pd.concat(tables, ignore_index=True))

    def _table(self, run: Run, file: str) -> pd.DataFrame:
        text = self._read(run, file)
        try:
            # What looks like a number is none here: an id of 0001, an answer of 07.
            texts = dict.fromkeys(("id", "question", "answer"), object)
            table = pd.read_json(io.StringIO(text), orient="split", precise_float=True, dtype=texts)
            table[["id", "question"]]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UserError(
                f"run {run.info.run_id}: {file}: no table of predictions ({reason}); score it again"
            ) from error
        return table

    def metrics(self, run_id: str, split: str) -> dict[str, float]:
        """A run's scores on a split, after compiling where it compiled, those of its small models' steps, and what the
        compile has spent."""
        logged = without_fold(self.get(run_id).data.metrics)
        names = {name: name.removeprefix(f"{split}/") for name in logged if name.startswith(f"{split}/")}
        steps = {name: score for name, score in logged.items() if name.startswith("steps/")}
        spent = {name: logged[f"spent/{key}"] * by for key, (name, by) in SPENT.items() if f"spent/{key}" in logged}
        return {name: logged[key] for key, name in names.items() if "/" not in name} | steps | spent

    def runs(self) -> list[Run]:
        """Finished runs of the experiment that compiled or scored a program, oldest first."""
        words = " and ".join(f"tags.`{KIND}` != '{kind}'" for kind in NO_VARIANTS) + FINISHED
        with answering(self.uri):
            found = self.client.get_experiment_by_name(self.experiment_name)
            return list(oldest_first(self.client, [found.experiment_id], words)) if found else []
