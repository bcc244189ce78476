"""hoptimizer: compile multi-hop question answering programs, and compare every variant in MLflow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoptimizer.answers import answer_all
    from hoptimizer.common.errors import ServiceError, UserError
    from hoptimizer.comparison import compare_variants
    from hoptimizer.compiled import CompiledProgram, load_variant
    from hoptimizer.compiling import compile_variant
    from hoptimizer.config import Config, load_config, make_config
    from hoptimizer.genai.scorers import evaluation_dataset, predictor, scorers
    from hoptimizer.report.page import write_report
    from hoptimizer.study.cells import load_study
    from hoptimizer.study.run import estimate_study, run_study
    from hoptimizer.tracking.models import RegisteredVariant, register_variant
    from hoptimizer.tracking.sync import DeliveredRun, sync_runs
    from hoptimizer.tracking.tracker import Tracker
    from hoptimizer.variants import evaluate_variant
    from hoptimizer.workbench import Workbench

# Imported when first used: torch, DSPy and MLflow together take seconds.
_HOMES = {
    "CompiledProgram": "hoptimizer.compiled",
    "Config": "hoptimizer.config",
    "DeliveredRun": "hoptimizer.tracking.sync",
    "RegisteredVariant": "hoptimizer.tracking.models",
    "ServiceError": "hoptimizer.common.errors",
    "Tracker": "hoptimizer.tracking.tracker",
    "UserError": "hoptimizer.common.errors",
    "Workbench": "hoptimizer.workbench",
    "answer_all": "hoptimizer.answers",
    "compare_variants": "hoptimizer.comparison",
    "compile_variant": "hoptimizer.compiling",
    "estimate_study": "hoptimizer.study.run",
    "evaluate_variant": "hoptimizer.variants",
    "evaluation_dataset": "hoptimizer.genai.scorers",
    "load_config": "hoptimizer.config",
    "load_study": "hoptimizer.study.cells",
    "load_variant": "hoptimizer.compiled",
    "make_config": "hoptimizer.config",
    "predictor": "hoptimizer.genai.scorers",
    "register_variant": "hoptimizer.tracking.models",
    "run_study": "hoptimizer.study.run",
    "scorers": "hoptimizer.genai.scorers",
    "sync_runs": "hoptimizer.tracking.sync",
    "write_report": "hoptimizer.report.page",
}

__all__ = [
    "CompiledProgram",
    "Config",
    "DeliveredRun",
    "RegisteredVariant",
    "ServiceError",
    "Tracker",
    "UserError",
    "Workbench",
    "answer_all",
    "compare_variants",
    "compile_variant",
    "estimate_study",
    "evaluate_variant",
    "evaluation_dataset",
    "load_config",
    "load_study",
    "load_variant",
    "make_config",
    "predictor",
    "register_variant",
    "run_study",
    "scorers",
    "sync_runs",
    "write_report",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
