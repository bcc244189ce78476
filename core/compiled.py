"""A compiled program as a run, or a folder, has it, ready to be called."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import check_links, expanded
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.common.strict import value_at
from hoptimizer.common.urls import without_secrets
from hoptimizer.config import DEFAULT_LM, Config, load_config
from hoptimizer.layers import Layers
from hoptimizer.models import build_adapter
from hoptimizer.programs import Ensemble, Program
from hoptimizer.programs.settings import retrieves
from hoptimizer.stored import kept_in, read_stored, stored_config, stored_state
from hoptimizer.tracking.settings import TrackingSettings
from hoptimizer.workbench import Workbench

if TYPE_CHECKING:
    from hoptimizer.tracking.tracker import Tracker

_FILES = ("config.yaml", "program.json")
# Roles of language models that a program which answers does not ask.
NOT_ASKED = ("judge", "teacher", "reflection")
# The step whose small model has learned from what the language model answers without passages.
SELF_KNOWLEDGE = "self_knowledge"
_log = logging.getLogger(__name__)


class CompiledProgram(dspy.Module):
    """A program with its language models, small models and retriever, to be called in any application.

    Calling it changes none of DSPy's or MLflow's settings: language model and adapter hold for the call alone.

    Args:
        bench: what the program was made of.
        program: the program.

    Attributes:
        config: what the variant was made from.
        program: the program itself, whose steps are DSPy predictors.

    Example:
        >>> from hoptimizer import CompiledProgram, Workbench, make_config
        >>> config = make_config({"data": "atlas", "program": {"name": "rag", "reader": "none"}, "retriever": "bm25"})
        >>> bench = Workbench(config)
        >>> program = CompiledProgram(bench, bench.program())
        >>> len(program(question="Where was Marie Curie born?").passages)
        4
    """

    def __init__(self, bench: Workbench, program: Program) -> None:
        super().__init__()
        self.config: Config = bench.config
        self.program = program
        self._bench = bench  # whose temporary files live as long as the program
        self._lm, self._adapter = bench.lms["default"], build_adapter()

    def forward(self, question: str, main: str | None = None) -> dspy.Prediction:
        """Answer a question.

        Args:
            question: the question.
            main: the page that it is asked about, as for :meth:`hoptimizer.programs.Program.aforward`.

        Returns:
            a prediction with ``answer: str``, ``passages: list[Passage]`` and ``steps: list[StepRecord]``.
        """
        with dspy.context(lm=self._lm, adapter=self._adapter):
            return self.program(question=question, main=main)

    async def aforward(self, question: str, main: str | None = None) -> dspy.Prediction:
        """As :meth:`forward`, from async code."""
        with dspy.context(lm=self._lm, adapter=self._adapter):
            return await self.program.acall(question=question, main=main)

    def __deepcopy__(self, memo: dict[int, object]) -> "CompiledProgram":
        return CompiledProgram(self._bench, self.program.deepcopy())


def load_variant(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    tracking_uri: str | None = None,
    report: Report = in_notebook,
) -> CompiledProgram:
    """A variant as a ``dspy.Module`` that is ready to answer questions.

    It may be a stranger's: nothing that it holds is run. The servers that its config names are told in a warning before
    they are contacted, and get no key of yours unless you give it.

    Args:
        source: ``runs:/ID`` of a compile, or of an evaluation of an uncompiled program; ``models:/NAME/VERSION``,
            ``models:/NAME/latest``, ``models:/NAME@ALIAS`` or ``models:/ID`` of its MLflow model; or the folder of a
            variant: ``variant`` of a downloaded run or MLflow model.
        overrides: ``key=value`` arguments that change the variant's config, such as ``lm.default=openai/gpt-4o``.
        tracking_uri: where the run is kept; by default where MLflow has been pointed, else hoptimizer's own default.
        report: is told about progress, such as the building of an index.

    Raises:
        UserError: there is no such variant, or a part of it can't be had: its data, a language model, a small model.

    Example:
        >>> from pathlib import Path
        >>> from hoptimizer import compile_variant, load_config, load_variant
        >>> words = ["data=atlas", "data.train=4", "data.dev=1", "program=direct", "lm.default.max_tokens=8"]
        >>> store = f"sqlite:///{Path.cwd()}/mlflow.db"
        >>> config = load_config(None, [*words, "optimizer=labeled_few_shot", f"tracking.uri={store}"])
        >>> variant = compile_variant(config, score_before=False)
        >>> program = load_variant(f"runs:/{variant.run_id}", tracking_uri=store)
        >>> isinstance(program(question=variant.after.rows[0].question.question).answer, str)
        True
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder, place, uri = expanded(source), str(source), tracking_uri or _default_uri()
        if place.startswith(("runs:/", "models:/")):
            from hoptimizer.tracking.fetching import fetch, run_of_model  # brings MLflow

            run_id = run_of_model(place, uri) if place.startswith("models:/") else place.removeprefix("runs:/")
            place = variant_of(run_id.strip("/"))
            folder = fetch(place, uri, Path(temporary))
        else:
            place = str(folder)
        for name in _FILES:
            if not (folder / name).is_file():
                raise UserError(
                    f"{source}: no {name} in it, so it is no variant; give runs:/ID of a compile, or of an "
                    "uncompiled program that was scored, or the folder `variant` of a run or model that was downloaded"
                )
        check_links(folder)
        config, program = (read_stored(folder / name, str(source)) for name in _FILES)
        values, state = stored_config(config, str(source)), stored_state(program, str(source))
    bench = Workbench(load_config(None, overrides, kept_in(values, uri)), report)
    given = Layers()
    given.add_words([*overrides])
    if servers := _servers(bench.config, given.values):
        _log.warning("%s contacts %s", source, ", ".join(servers))
    bench.check_lms(NOT_ASKED)
    check_default(bench.config, values, state)
    return CompiledProgram(bench, restore(bench, state, place))


def _servers(config: Config, given: Mapping[str, Any]) -> list[str]:
    """The addresses that a variant's config names, without secrets, each after what is asked there.

    Args:
        config: the variant's, with what was changed in it.
        given: what was changed, whose addresses are known to who changed it.
    """
    asked = {role: lm for role, lm in config.lm.items() if lm.api_base and role not in NOT_ASKED}
    asked_lms = [f"lm.{role} {lm.shown}" for role, lm in asked.items() if not value_at(given, ("lm", role, "api_base"))]
    urls = config.retriever.urls if retrieves(config.program) and not value_at(given, ("retriever", "url")) else ()
    return asked_lms + [f"retriever {without_secrets(url)}" for url in urls]


def _default_uri() -> str:
    import mlflow

    return mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else TrackingSettings().uri


def variant_of(run_id: str) -> str:
    """Where a run keeps its program and its models."""
    return f"runs:/{run_id}/variant"


def program_of(bench: Workbench, tracker: "Tracker | None", run_id: str | None, *, searches: bool = True) -> Program:
    """The program of a config: as a run of a store has it, or uncompiled where no run is given.

    Args:
        bench: makes the program.
        tracker: the store.
        run_id: the run.
        searches: whether it gets its retriever; without one it can be kept, but not asked.
    """
    if tracker is None or run_id is None:
        return bench.program(searches=searches)
    state = tracker.load_state(run_id)
    check_default(bench.config, tracker.config_values(run_id), state)
    return restore(bench, state, variant_of(run_id), searches=searches)


def check_default(config: Config, stored: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Make sure that another default language model than a variant's own is asked for something, and say what was
    learned from the other one's knowledge.

    Args:
        config: the variant's, with what was changed in it.
        stored: the variant's own, as plain data.
        state: the variant's.

    Raises:
        UserError: all of its steps have models that were fine-tuned for them.
    """
    model, own = config.lm["default"].model, Layers(stored).resolved().get("lm", {}).get("default", {})
    if model == own.get("model", DEFAULT_LM):
        return
    given = {*config.lm, *config.program.model_dump()["steps"]}
    tuned, asking, small = set[str](), set[str](), set[str]()
    for member in state["program"].get("members") or [state]:
        kept = member["program"]
        trained = {*kept.get("lms", {})} - given
        tuned |= trained
        small |= {*kept.get("models", ())} - given
        asking |= {*member} - {"program", *trained, *small, *given}
    if tuned and not asking:
        first, *others = sorted(tuned)
        raise UserError(
            f"lm.default={model}: no step of the variant asks it; {', '.join([first, *others])} "
            f"{'have models that were' if others else 'has a model that was'} fine-tuned; to replace it, name the "
            f"step, as in lm.{first}={model}"
        )
    if SELF_KNOWLEDGE in small:
        _log.warning(
            "%s was learned from what %s knows by itself; %s may know other things: compile the program for it",
            SELF_KNOWLEDGE,
            own.get("model", DEFAULT_LM),
            model,
        )


def restore(bench: Workbench, state: dict[str, Any], variant: str, *, searches: bool = True) -> Program:
    """The program of a config in the state that was kept of a compiled one.

    Args:
        bench: makes the program; a model that its config names for a step goes before the one that was kept.
        state: the compiled program's.
        variant: the folder, or its URI, that has the models that took steps: small ones by the step in ``steps``, local
            fine-tuned language models by their name in ``lm``.
        searches: as for :func:`program_of`.

    Raises:
        UserError: the state is another program's, or a model can't be had.
    """
    if members := state["program"].get("members"):
        return Ensemble([restore(bench, member, variant, searches=searches) for member in members])
    program = bench.program(searches=searches)
    steps = [name for name, _ in program.named_predictors()]
    kept = sorted(set(state) - {"program"})
    if strange := sorted(set(steps) - set(kept)):
        raise UserError(
            f"the run's program has the steps {', '.join(kept)}, not {', '.join(strange)}: leave program.name and the "
            "options that choose steps, such as program.reader, as the run has them"
        )
    _check_demonstrations(program, state, variant)
    # Steps that settings switched off, as an ablation does, are left out.
    try:
        program.load_state({name: state[name] for name in [*steps, "program"]})
    except ValueError as error:  # DSPy's, of options for decisions that the program does not make
        raise UserError(
            f"{variant}: its state does not fit the program {bench.config.program.name}: {error}"
        ) from error
    for step in state["program"].get("models", []):
        if step in steps and step not in program.models:
            program.models[step] = bench.step_model(f"{variant}/steps/{step}", step)
    # A step whose language model the config names needs no weights here: they may be served elsewhere.
    needed = [step for step in steps if step not in program.lms]
    tuned = {step: model for step, model in state["program"].get("lms", {}).items() if step in needed}
    lms = {model: bench.tuned_lm(model, variant) for model in set(tuned.values())}
    program.lms |= {step: lms[model] for step, model in tuned.items()}
    return program


def _check_demonstrations(program: Program, state: dict[str, Any], variant: str) -> None:
    """Make sure that a text of a demonstration is a text, or several: no prompt format can show anything else."""
    pool = (state["program"].get("neighbours") or {}).get("pool", ())
    for step, predictor in program.named_predictors():
        demos = [*state[step]["demos"], *(shown[step] for _, shown in pool if step in shown)]
        for name, field in predictor.signature.fields.items():
            for value in (demo[name] for demo in demos if name in demo):
                wrong = field.annotation is str and isinstance(value, list) and not all(map(_is_text, value))
                if wrong:
                    raise UserError(f"{variant}: program.json: {step}.demos: {name}: expected text, got {value!r:.60}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)
