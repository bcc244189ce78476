"""A config's parts, each made when it is first needed."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import dspy
from dspy.clients import base_lm

from hoptimizer.answers import answer_all
from hoptimizer.common.errors import UserError
from hoptimizer.common.progress import Report, in_notebook
from hoptimizer.config import Config
from hoptimizer.eval.datasets.dataset import DataSet, load
from hoptimizer.executors.elsewhere import encoders_of, language_models_of
from hoptimizer.models import build_adapter, build_lm, check_lm
from hoptimizer.models.disk_cache import answers_folder, kept_elsewhere
from hoptimizer.models.folder import fingerprints
from hoptimizer.models.lm import chosen_format, tuned
from hoptimizer.models.settings import LOCAL, LMSettings
from hoptimizer.models.small.base import StepModel
from hoptimizer.models.usage import AnswerCache, CallCache
from hoptimizer.optimizers import Optimizer, build_optimizer
from hoptimizer.optimizers.training.dspy_provider import LocalProvider
from hoptimizer.programs import Program, build_program
from hoptimizer.programs.settings import retrieves, shown
from hoptimizer.retrieval import Retriever, build_retriever
from hoptimizer.retrieval.encoders.windows import Elsewhere
from hoptimizer.retrieval.kept_rankings import one_command
from hoptimizer.retrieval.settings import OracleSettings, RetrieverOptions

# DSPy keeps so many calls with all their texts, by default 10,000, and copies them with each copy of a language model.
HISTORY = 100


class Workbench:
    """What a config describes: data, retriever, language models, program and optimizer.

    Args:
        config: a validated config.
        report: told about long work.
        keeps_calls: whether language models use the cache, also where the config wants none: for work that is given a
            folder for its calls.

    Example:
        >>> from hoptimizer import Workbench, make_config
        >>> program = {"name": "rag", "reader": "none"}
        >>> bench = Workbench(make_config({"data": "atlas", "program": program, "retriever": {"name": "bm25", "k": 2}}))
        >>> len(bench.program()(question="Where was Marie Curie born?").passages)
        2
    """

    def __init__(self, config: Config, report: Report = in_notebook, *, keeps_calls: bool = False) -> None:
        self.config = config
        self.report = report
        self._keeps_calls = keeps_calls
        self._answering: set[str] = set()

    @cached_property
    def data(self) -> DataSet:
        """The data set, its splits cut to the sizes that the config asks for."""
        return load(self.config.data)

    @cached_property
    def retriever(self) -> Retriever:
        """The retriever over the data set's corpus; its index is built where there is none.

        Raises:
            UserError: there is no corpus, or the retriever can't be had.
        """
        settings = self.config.retriever
        if not (self.data.corpus or settings.elsewhere):
            raise UserError(
                f"data set {self.data.name!r} has no corpus to search; add corpus.jsonl to {self.data.folder}, set "
                "data.corpus, or take a program that does not search: direct or cot"
            )
        index = _Index(
            key=f"{settings.model_dump_json(exclude={'k'})} {fingerprints(settings.encoders)} "
            f"{self.data.corpus.digest} {self._questions_digest} {settings.urls} {settings.login}",
            settings=settings,
            data=self.data,
            report=self.report,
            elsewhere=encoders_of(self.config.executor),
        )
        retriever = _retriever(index)
        if not any(lm.cache for lm in self.config.lm.values()):  # nothing is to come from earlier work: it is timed
            retriever.forget()
        return retriever

    @property
    def _questions_digest(self) -> str:
        """Of the questions, where it depends on them what is found."""
        return self.data.digest if isinstance(self.config.retriever, OracleSettings) else ""

    @cached_property
    def lms(self) -> dict[str, dspy.LM]:
        """Language models by role or step; none was asked for a word yet."""
        return {role: self._build(settings) for role, settings in self.config.lm.items()}

    def summary(self, *splits: str, run_id: str | None = None) -> str:
        """What is used, in one line without secrets: program, language models by role, retriever and data.

        Args:
            splits: of the data, whose sizes are told; without any, the number of passages is.
            run_id: the compiled variant that the program comes from.

        Raises:
            UserError: the data can't be had, or lacks a split.

        Example:
            >>> from hoptimizer import Workbench, load_config
            >>> words = ["data=atlas", "data.dev=6", "program=ra_isf", "retriever=bm25", "lm.reader=openai/gpt-4o"]
            >>> Workbench(load_config(None, words)).summary("dev")
            'ra_isf · local/smollm2-135m-instruct, reader openai/gpt-4o · bm25 k=5 · atlas (dev 6)'
        """
        config = self.config
        program = f"{config.program.name} of {run_id[:8]}" if run_id else shown(config.program, config.lm)
        models = {role: settings.shown for role, settings in config.lm.items()}
        lms = [models.pop("default"), *(f"{role} {model}" for role, model in models.items())]
        searched = [self._retriever_summary(config.k)] if retrieves(config.program) else []
        return " · ".join([program, ", ".join(lms), *searched, self._data_summary(splits)])

    def search_summary(self, k: int | None = None) -> str:
        """The retriever and the data that it searches, in one line without secrets.

        Args:
            k: passages per search, where any is made.

        Raises:
            UserError: the data can't be had.
        """
        return f"{self._retriever_summary(k)} · {self._data_summary(())}"

    def _retriever_summary(self, k: int | None) -> str:
        return " ".join([self.config.retriever.shown, *([f"k={k}"] if k else [])])

    def _data_summary(self, splits: Sequence[str]) -> str:
        sizes = [f"{split} {len(self.data.split(split))}" for split in dict.fromkeys(splits)]
        return f"{self.data.name} ({', '.join(sizes) or f'{len(self.data.corpus)} passages'})"

    def program(self, *, searches: bool = True) -> Program:
        """A new, uncompiled program; one that ``searches`` not has no retriever, and can be kept, but not asked."""
        settings = self.config.program
        retriever = self.retriever if searches and retrieves(settings) else None
        program = build_program(settings, retriever, self.config.k, self.step_model)
        program.lms = {step: lm for step, lm in self.lms.items() if step in program.step_names}
        if searches and getattr(settings, "page", False):
            program.corpus = self.data.corpus
        return program

    def tuned_lm(self, model: str, variant: str) -> dspy.LM:
        """A fine-tuned language model, with the settings of the default one.

        Args:
            model: ``local/NAME``, which lies in the variant, or what a provider calls it.
            variant: the variant's folder, or its URI such as ``runs:/ID/variant``.

        Raises:
            UserError: it can't be had.
        """
        name = model.removeprefix(LOCAL)
        if name != model:
            model = f"{LOCAL}{self._kept(f'{variant}/lm/{name}')}"
        default = self.config.lm["default"]
        # It was trained in the prompt format of the model that it was made from.
        update = {"model": model, "prompt_format": chosen_format(default)}
        return tuned(self._build(default.model_copy(update=update)), model)

    def step_model(self, source: str, step: str) -> StepModel:
        """The small model of a source (a folder, a hub id, or a URI such as ``runs:/ID/PATH``) for a step.

        Raises:
            UserError: it can't be had, or is of another step.
        """
        from hoptimizer.models.small.loading import load_step_model  # brings torch

        return load_step_model(
            source, step, lambda uri: self._fetch(uri, Path(tempfile.mkdtemp(dir=self._fetched.name)))
        )

    def _fetch(self, source: str, folder: Path) -> Path:
        from hoptimizer.tracking.fetching import fetch  # brings MLflow

        return fetch(source, self.config.tracking.uri, folder)

    def _kept(self, source: str) -> Path:
        """A folder, or one of a tracked run, which is fetched once for good."""
        if Path(source).is_dir():
            return Path(source)
        from hoptimizer.tracking.fetching import fetch_once  # brings MLflow

        return fetch_once(source, self.config.tracking.uri)

    @cached_property
    def _fetched(self) -> tempfile.TemporaryDirectory[str]:
        """What was fetched from tracked runs; it goes when the workbench does."""
        return tempfile.TemporaryDirectory(prefix="hoptimizer-")

    def optimizer(self) -> Optimizer:
        """The optimizer that the config names."""
        return build_optimizer(self.config.optimizer)

    @contextlib.contextmanager
    def active(self, calls: Path | None = None, *, judged: bool = False, spread: bool = False) -> Iterator[None]:
        """Within it, DSPy uses the config's default language model, its adapter and its cache, and what was found in
        indexes elsewhere is kept.

        Args:
            calls: a folder for the calls of one piece of work that may be killed and resumed; they are kept
                there whatever becomes of the cache.
            judged: whether answers are judged in it, where the config names a judge.
            spread: whether the config's executor answers the calls of models that would run in this process.

        Raises:
            UserError: a language model can't answer, or the executor's cluster can't be had.
        """
        self.check_lms(set() if judged else {"judge"})
        use_cache(self.config, calls)
        # DSPy keeps the latest 10,000 calls and steps of a process, and has no setting for these calls.
        base_lm.MAX_HISTORY_SIZE = HISTORY
        lm, adapter = self.lms["default"], build_adapter()
        local = self.config.local_models if spread else []
        answering = (
            language_models_of(self.config.executor, local, self.config.workers) if local else contextlib.nullcontext()
        )
        with one_command(), answering, dspy.context(lm=lm, adapter=adapter, max_history_size=HISTORY, trace=None):
            yield

    def check_lms(self, skipped: Collection[str] = ()) -> None:
        """Find out whether the language models can answer, once for each.

        Args:
            skipped: roles that are not needed.

        Raises:
            ServiceError: the server of one is out of reach.
            UserError: one can't.
        """
        for role in [role for role in self.config.lm if role not in {*self._answering, *skipped}]:
            try:
                check_lm(self.config.lm[role])
            except UserError as error:
                raise type(error)(f"lm.{role}: {error}") from error
            self._answering.add(role)

    def _build(self, settings: LMSettings) -> dspy.LM:
        """The LM of settings; one in this process can be fine-tuned."""
        lm = build_lm(settings)
        lm.cache = settings.cache or self._keeps_calls  # whichever cache DSPy has by now
        if settings.is_local:
            lm.provider = LocalProvider(templated=lm.engine.templated)
        return lm


@dataclass(frozen=True)
class _Index:
    """What a retriever is made from; equal where the key is."""

    key: str
    settings: RetrieverOptions = field(compare=False)
    data: DataSet = field(compare=False)
    report: Report = field(compare=False)
    elsewhere: Elsewhere | None = field(compare=False)


# Cells of a study share retrievers, with what these found; loading one takes seconds. Large ones are memory-mapped.
@lru_cache(maxsize=8)
def _retriever(index: _Index) -> Retriever:
    corpus = index.data.corpus
    stage = f"indexing {corpus.name}"
    return build_retriever(
        index.settings,
        corpus,
        progress=lambda done, total: index.report(stage, done, total, ""),
        supporting=index.data.supporting if isinstance(index.settings, OracleSettings) else None,
        elsewhere=index.elsewhere,
    )


def ask_all(bench: Workbench, program: Program, questions: Sequence[str]) -> list[dict[str, Any]]:
    """:func:`~hoptimizer.answers.answer_all` within the settings of a workbench, as models of version 0.1.0 call it."""
    with bench.active():
        return answer_all(program, questions)


def use_cache(config: Config, calls: Path | None = None) -> None:
    """Keep the answers of language models in the cache of all work.

    Args:
        config: says whether answers are kept.
        calls: a folder for the calls of one piece of work, which it has before any other.
    """
    dspy.cache = AnswerCache(answers_folder(), disk=kept_elsewhere())
    if calls:
        wanted = all(settings.cache for settings in config.lm.values())
        dspy.cache = CallCache(calls, dspy.cache if wanted else None)
