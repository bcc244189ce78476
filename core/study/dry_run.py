"""What a command would do: its resolved config, what it would ask of which model, and what that would cost."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dspy
import mlflow
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from hoptimizer.common.errors import UserError
from hoptimizer.common.options import Options
from hoptimizer.common.plugins import nested
from hoptimizer.common.urls import line_without_secrets
from hoptimizer.compiling import context_of
from hoptimizer.config import Config
from hoptimizer.models.engine.engine import is_local
from hoptimizer.optimizers.nested import built
from hoptimizer.optimizers.prompt.search import PROBE, Search, WorkEstimate
from hoptimizer.programs import Program, build_program
from hoptimizer.study.cells import Study
from hoptimizer.study.estimate import StudyEstimate, estimate, known_costs, told_costs
from hoptimizer.tracking.holding import SQLITE, located
from hoptimizer.tracking.journal import store_of
from hoptimizer.tracking.reading import StoredRuns
from hoptimizer.tracking.server import check_server
from hoptimizer.tracking.tracker import Tracker
from hoptimizer.workbench import Workbench

_TEACHING = ("teacher", "reflection")


@dataclass(frozen=True)
class Asked:
    """A model, and what it would be asked for.

    Attributes:
        model: as a command's first line names it, or where a small model comes from.
        roles: the steps of the program that it takes, and roles such as ``teacher`` and ``judge``.
    """

    model: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class DryRun:
    """What a command would do.

    Attributes:
        config: the resolved config as plain data, without secrets.
        asked: the models that would be asked.
        questions: times that the program would run on a question to be scored.
        optimizer: times that it would run for the optimizer, and proposals; ``None`` where nothing is compiled, or the
            optimizer does not tell.
        costs: what these runs would take together, as far as the cost of a question is known.
        basis: how that is known, or that it is not.
    """

    config: dict[str, Any]
    asked: list[Asked]
    questions: int
    optimizer: WorkEstimate | None
    costs: dict[str, float]
    basis: str

    def as_dict(self) -> dict[str, Any]:
        """What ``--dry-run --json`` prints."""
        return asdict(self)

    @property
    def line(self) -> str:
        """The estimate in one line."""
        parts = [f"{self.questions:,} questions to score"]
        if self.optimizer:
            parts.append(f"about {self.optimizer.runs:,} more for the optimizer")
            parts += [f"about {self.optimizer.proposals:,} proposals"] if self.optimizer.proposals else []
        parts += told_costs(self.costs)
        return f"{'; '.join(parts)} (cost of a question: {self.basis})"


def dry_run(config: Config, *, split: str, run_id: str | None = None, compiles: bool = False) -> DryRun:
    """What an evaluation or a compile would do; no model is asked, no index is built and nothing is written.

    Args:
        config: as the command has it.
        split: the questions that are scored.
        run_id: the compiled variant that is scored, or that the compile starts from.
        compiles: whether the command compiles.

    Raises:
        UserError: the data can't be had, or the optimizer can't do what the config says.
    """
    bench = Workbench(config)
    own = config.program.model_dump()["steps"]
    options = config.program.model_copy(update={"steps": {}})
    program = build_program(options, None, config.k)
    program.lms = {step: lm for step, lm in bench.lms.items() if step in program.step_names}
    if run_id:
        tracker = Tracker(store_of(config.tracking.uri, run_id), config.experiment)
        kept = tracker.load_state(run_id)["program"]
        small = {step: f"runs:/{run_id}/variant/steps/{step}" for step in kept.get("models", ())}
        own = {**small, **kept.get("lms", {}), **own}
    questions = len(bench.data.split(split)) * (2 if compiles else 1)
    work = _work(bench, program) if compiles else None
    of_each, basis = known_costs(config, earlier_runs(config)[::-1])
    times = questions + (work.runs if work else 0)
    costs = {name: each * times for name, each in of_each.items() if name != "seconds_per_question"}
    return DryRun(config.public(), _asked(config, program, own, compiles), questions, work, costs, basis)


def dry_study(study: Study) -> StudyEstimate:
    """What a study would cost by earlier runs; no model is asked and nothing is written."""
    return estimate(study, earlier_runs(study.config))


def earlier_runs(config: Config) -> list[Run]:
    """The finished runs of the config's experiment, oldest first; a store that is not there yet is not made.

    Raises:
        UserError: the store can't be read.
    """
    uri = located(config.tracking.uri)
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_file():
        return []
    check_server(uri)
    try:
        return StoredRuns(uri, mlflow.MlflowClient(tracking_uri=uri), config.experiment).runs()
    except MlflowException as error:
        raise UserError(f"tracking.uri: {line_without_secrets(error)}") from error


def _asked(config: Config, program: Program, own: dict[str, str], compiles: bool) -> list[Asked]:
    """The models that would be asked, each with its steps and roles."""
    roles: dict[str, list[str]] = {}
    for step, _ in program.named_predictors():
        lm = config.lm.get(step, config.lm["default"])
        roles.setdefault(own.get(step) or lm.shown, []).append(step)
    for role in ("judge", *(_TEACHING if compiles else ())):
        if named := config.lm.get(role):
            roles.setdefault(named.shown, []).append(role)
    return [Asked(model, tuple(taken)) for model, taken in roles.items()]


def _work(bench: Workbench, program: Program) -> WorkEstimate | None:
    """How often the optimizer would run the program; ``None`` where it does not tell."""
    config = bench.config
    context = context_of(bench, program)
    optimizer = bench.optimizer()
    with dspy.context(lm=bench.lms["default"]):
        optimizer.check(context)
        if not isinstance(optimizer, Search):
            return None
        work, dev = optimizer.work(context), len(context.devset)
    formats = _formats_tried(config.optimizer) if is_local(bench.lms["default"]) else 0
    return replace(work, runs=work.runs + (formats * dev or min(PROBE, dev)))


def _formats_tried(optimizer: Options) -> int:
    """How many times dev is answered to choose prompt formats, at most: each search of an optimizer chooses one."""
    searches = [one for one in map(built, nested(optimizer)) if isinstance(one, Search)]
    return sum(len(search.prompt_formats) for search in searches if len(search.prompt_formats) > 1)
