"""What ``hop serve`` can be given: a variant wherever it is kept, or the config of an uncompiled program."""

from collections.abc import Sequence

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded
from hoptimizer.common.progress import Report
from hoptimizer.compiled import NOT_ASKED, CompiledProgram, load_variant
from hoptimizer.config import Config
from hoptimizer.tracking.journal import find_run, store_of
from hoptimizer.workbench import Workbench


def variant(source: str, overrides: Sequence[str], tracking_uri: str, report: Report) -> CompiledProgram:
    """A variant.

    Args:
        source: a run's id or the start of it, ``runs:/ID``, ``models:/NAME/VERSION`` or the variant's folder.
        overrides: ``key=value`` arguments that change its config.
        tracking_uri: where runs are kept.
        report: is told about progress.

    Raises:
        UserError: there is no such variant, or a part of it can't be had.
    """
    if files := [word for word in overrides if "=" not in word]:
        raise UserError(f"{files[0]}: beside a variant, which has its config, expected key=value alone")
    if not source.startswith(("runs:/", "models:/")) and not expanded(source).is_dir():
        run_id = find_run(tracking_uri, source)[1]
        source, tracking_uri = f"runs:/{run_id}", store_of(tracking_uri, run_id)
    return load_variant(source, overrides, tracking_uri=tracking_uri, report=report)


def uncompiled(config: Config, report: Report) -> CompiledProgram:
    """The program of a config as it is.

    Raises:
        UserError: a part of it can't be had.
    """
    bench = Workbench(config, report)
    bench.check_lms(NOT_ASKED)
    return CompiledProgram(bench, bench.program())
