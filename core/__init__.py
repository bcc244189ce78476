"""hoptimizer: compile multi-hop question answering programs, and compare every variant in MLflow."""

from typing import TYPE_CHECKING

import lazy_loader

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

# Imported when first used: torch, DSPy and MLflow together take seconds.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "answers": ["answer_all"],
        "common.errors": ["ServiceError", "UserError"],
        "comparison": ["compare_variants"],
        "compiled": ["CompiledProgram", "load_variant"],
        "compiling": ["compile_variant"],
        "config": ["Config", "load_config", "make_config"],
        "genai.scorers": ["evaluation_dataset", "predictor", "scorers"],
        "report.page": ["write_report"],
        "study.cells": ["load_study"],
        "study.run": ["estimate_study", "run_study"],
        "tracking.models": ["RegisteredVariant", "register_variant"],
        "tracking.sync": ["DeliveredRun", "sync_runs"],
        "tracking.tracker": ["Tracker"],
        "variants": ["evaluate_variant"],
        "workbench": ["Workbench"],
    },
)
