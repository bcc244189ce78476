"""Question answering programs: the published methods and the baselines they are compared with."""

from hoptimizer.programs.direct import CoT, Direct
from hoptimizer.programs.efficient_rag import EfficientRAG
from hoptimizer.programs.ensemble import Ensemble
from hoptimizer.programs.ircot import IRCoT
from hoptimizer.programs.program import Program
from hoptimizer.programs.ra_isf import RAISF
from hoptimizer.programs.rag import RAG
from hoptimizer.programs.record import StepRecord
from hoptimizer.programs.settings import PROGRAMS, build_program, settings_model

__all__ = [
    "PROGRAMS",
    "RAG",
    "RAISF",
    "CoT",
    "Direct",
    "EfficientRAG",
    "Ensemble",
    "IRCoT",
    "Program",
    "StepRecord",
    "build_program",
    "settings_model",
]
