"""Arguments that commands share."""

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.yaml] [KEY=VALUE]...",
        help="A config file, and settings that win over it, e.g. data=atlas program.name=ircot.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and all else on stderr.")]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="ID", help="The MLflow run of a variant: its id, or the start of it."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be asked of which model and what it would cost, and ask nothing."),
]
Split = Annotated[str, typer.Option("--split", help="The questions: train, dev or test.")]


def is_config(word: str) -> bool:
    """Whether a word is a config file or sets a key of one, and is no run or folder."""
    return "=" in word.split("/")[0] or word.endswith((".yaml", ".yml"))


def read_overrides(
    overrides: Sequence[str] | None, base: dict[str, Any] | None = None, splits: Sequence[str] | None = None
) -> Any:  # noqa: ANN401 - a Config, imported late
    """The config that a command's words describe: files first, then ``key=value`` arguments.

    Args:
        words: what the user typed.
        base: plain data that they win over.
        splits: of the data, which have to be there; ``None`` where the data is not needed at all.

    Raises:
        UserError: more than one file, a key or value that is not known, or the data is not there.
    """
    from hoptimizer.common.errors import UserError
    from hoptimizer.config import load_config

    files = [Path(word) for word in overrides or () if "=" not in word]
    if len(files) > 1:
        raise UserError(f"{files[1]}: one config file is enough; everything else is key=value")
    words = [word for word in overrides or () if "=" in word]
    check = None if splits is None else partial(_check_data, splits)
    return load_config(files[0] if files else None, words, base, check)


def _check_data(splits: Sequence[str], config: Any) -> None:  # noqa: ANN401 - a PlainConfig, imported late
    from hoptimizer.eval import load

    data = load(config.data)  # what was read is kept for those who ask for it next
    for split in splits:
        data.split(split)


def config_of(
    start: str | None, overrides: Sequence[str] | None, splits: Sequence[str] | None = None
) -> tuple[str | None, Any]:
    """A run's id, and its config, changed by a command's words; without a run, the config that the words describe.

    Args:
        start: of the id; a run that waits in the journal is found, too.
        words: what the user typed; they say where the run is kept, too, where that is not the default store.
        splits: of the data, which have to be there; ``None`` where the data is not needed at all.

    Raises:
        UserError: there is no such run, a word is wrong, or the data is not there.
    """
    if start is None:
        return None, read_overrides(overrides, splits=splits)
    from hoptimizer.tracking.settings import UnknownRun, is_empty

    uri = store_uri(overrides or ())
    if is_empty(uri):
        raise UnknownRun(start, uri)
    from hoptimizer.stored import kept_in
    from hoptimizer.tracking.journal import find_run

    tracker, run_id = find_run(uri, start)
    return run_id, read_overrides(overrides, kept_in(tracker.config_values(run_id), uri), splits)


def check_parts(
    config: Any,  # noqa: ANN401 - a Config, imported late
    *,
    compiles: bool = False,
    asks: bool = True,
    skipped: Collection[str] = (),
) -> None:
    """Make sure that the models are there and answer, before what takes seconds to import.

    Args:
        config: what is wanted.
        compiles: whether the optimizer is used, too.
        asks: whether models behind a server may be asked.
        skipped: roles of language models that are not needed.

    Raises:
        ServiceError: the server of one is out of reach.
        UserError: one is not there, or does not answer.
    """
    from hoptimizer.models.small.source import check_source
    from hoptimizer.workbench import Workbench

    bench = Workbench(config)
    for source in config.program.model_dump()["steps"].values():
        check_source(source)
    if compiles:
        bench.optimizer().check_roles(config.lm)
    unasked = [role for role, lm in config.lm.items() if role != "default" or not lm.is_local]
    bench.check_lms(skipped if asks else unasked)


def store_uri(overrides: Sequence[str]) -> str:
    """The tracking URI that a command's words say, whose other parts may stand on the config of a run that is there."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from pydantic import ValidationError

    from hoptimizer.common.errors import UserError
    from hoptimizer.common.strict import read_mapping
    from hoptimizer.common.validation import explain
    from hoptimizer.layers import Layers, interpolation_error
    from hoptimizer.tracking.settings import TrackingSettings

    layers = Layers(*(read_mapping(Path(word)) for word in overrides if "=" not in word))
    layers.add_words([word for word in overrides if word.startswith(("tracking.uri=", "tracking="))])
    try:
        uri = OmegaConf.select(OmegaConf.create(layers.values), "tracking.uri")
        return (TrackingSettings(uri=uri) if uri else TrackingSettings()).uri
    except OmegaConfBaseException as error:
        raise interpolation_error(error) from error
    except ValidationError as error:
        raise UserError(explain(error, TrackingSettings, prefix="tracking.")) from None
