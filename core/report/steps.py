"""The steps that led to an answer, as short texts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.common.strict import read_json
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.settings import DataSettings
from hoptimizer.retrieval.passage import Corpus, Passage
from hoptimizer.tracking.naming import CORPUS
from hoptimizer.tracking.reading import StoredRuns

# Of a question's steps so many are shown, and of a text so many characters; the run has them all.
MOST = 40
LONGEST = 600
# Of the text of a passage that was found, so many characters are shown.
SNIPPET = 160
# What of a step's inputs says best what it was asked, the first that it has.
_ASKED = ("query", "thoughts", "known", "facts", "question")


@dataclass(frozen=True)
class ShownStep:
    """A step.

    Attributes:
        name: the step's.
        kind: what took it: ``lm``, ``model``, ``retrieval``; or ``outcome``.
        asked: what it was asked.
        said: what came out, by field; but for passages that are known.
        passages: those of them, with the start of their text.
        failure: why nothing usable came out, or nothing.
        depth: how deep the question lies that it belongs to.
    """

    name: str
    kind: str
    asked: str
    said: dict[str, str]
    passages: list[Passage]
    failure: str
    depth: int


def steps_of(runs: StoredRuns, run_id: str, split: str, moment: str = "after") -> dict[str, list[Any]]:
    """The steps that a run took for each question, by its id; none where the run does not have them.

    Args:
        runs: the store.
        run_id: the run.
        split: the questions' split.
        moment: ``after`` or ``before`` compiling.
    """
    try:
        found = read_json(runs.read_text(run_id, f"steps/{split}-{moment}.json"))
    except (UserError, ValueError):
        return {}
    return {id: steps for id, steps in found.items() if isinstance(steps, list)} if isinstance(found, dict) else {}


def searched(runs: StoredRuns, run_id: str) -> Corpus:
    """The passages that a run searched; none where they are not here, or no longer the same.

    Args:
        runs: the store.
        run_id: the run.
    """
    try:
        corpus = load(DataSettings.model_validate(runs.config_values(run_id).get("data"))).corpus
    except ValueError:  # no config, no such folder here, or another one
        return Corpus([])
    return corpus if runs.get(run_id).data.tags.get(CORPUS) == corpus.digest else Corpus([])


def shown_step(record: Any, corpus: Corpus) -> ShownStep:  # noqa: ANN401 - whatever a run has
    """A step record as texts.

    Args:
        record: of a run, as :meth:`hoptimizer.programs.record.StepRecord.as_dict` gives it.
        corpus: the passages that the run searched, where they are known.
    """
    fields: Mapping[str, Any] = record if isinstance(record, Mapping) else {}
    inputs, outputs = ({} if not isinstance(fields.get(n), Mapping) else fields[n] for n in ("inputs", "outputs"))
    depth = fields.get("depth")
    asked = next((inputs[name] for name in _ASKED if inputs.get(name)), "")
    ids = outputs.get("passages")
    known = isinstance(ids, list) and bool(ids) and all(isinstance(id, str) and id in corpus for id in ids)
    return ShownStep(
        name=_text(fields.get("step", "?")),
        kind=_text(fields.get("kind", "")),
        asked=_text(asked),
        said={str(name): _text(value) for name, value in outputs.items() if not (known and name == "passages")},
        passages=[_start(corpus[id]) for id in ids[:MOST]] if known else [],
        failure=_text(fields.get("failure") or ""),
        depth=min(depth, 8) if isinstance(depth, int) and depth > 0 else 0,
    )


def _start(passage: Passage) -> Passage:
    return Passage(_text(passage.id), _text(passage.title), shorten(passage.text, SNIPPET, placeholder=" …"))


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        text = ", ".join(value)
    elif isinstance(value, float):
        text = f"{value:.3g}"
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
