"""Question answering programs: the published methods and the baselines they are compared with.

Each is a DSPy module, which needs a language model and, unless it answers from memory, a retriever:

>>> import dspy
>>> from hoptimizer.models import LMSettings, build_adapter, build_lm
>>> from hoptimizer.programs import RAG
>>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage
>>> curie = Passage("curie", "Marie Curie", "She was born in Warsaw.")
>>> corpus = Corpus([curie, Passage("warsaw", "Warsaw", "It lies on the Vistula.")])
>>> program = RAG(BM25Retriever(corpus), k=1)
>>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=32))
>>> with dspy.context(lm=lm, adapter=build_adapter()):
...     prediction = program(question="Where was Marie Curie born?")
>>> [passage.id for passage in prediction.passages], [record.step for record in prediction.steps]
(['curie'], ['retrieve', 'reader'])
"""

from typing import TYPE_CHECKING

import lazy_loader

from hoptimizer.programs.settings import PROGRAMS, build_program, settings_model

if TYPE_CHECKING:
    from hoptimizer.programs.decomp import DecomP
    from hoptimizer.programs.decompose_rag import DecomposeRAG
    from hoptimizer.programs.direct import CoT, Direct
    from hoptimizer.programs.dsp import DSP
    from hoptimizer.programs.efficient_rag import EfficientRAG
    from hoptimizer.programs.ensemble import Ensemble
    from hoptimizer.programs.ircot import IRCoT
    from hoptimizer.programs.iter_retgen import IterRetGen
    from hoptimizer.programs.least_to_most import LeastToMost
    from hoptimizer.programs.program import Program
    from hoptimizer.programs.ra_isf import RAISF
    from hoptimizer.programs.rag import RAG
    from hoptimizer.programs.react import ReAct
    from hoptimizer.programs.recite import ReciteAndAnswer
    from hoptimizer.programs.record import StepRecord
    from hoptimizer.programs.replug import REPLUG
    from hoptimizer.programs.self_ask import SelfAsk
    from hoptimizer.programs.self_rag import SelfRAG
    from hoptimizer.programs.skr import SKR
    from hoptimizer.programs.trace import gather_steps

__all__ = [
    "DSP",
    "PROGRAMS",
    "RAG",
    "RAISF",
    "REPLUG",
    "SKR",
    "CoT",
    "DecomP",
    "DecomposeRAG",
    "Direct",
    "EfficientRAG",
    "Ensemble",
    "IRCoT",
    "IterRetGen",
    "LeastToMost",
    "Program",
    "ReAct",
    "ReciteAndAnswer",
    "SelfAsk",
    "SelfRAG",
    "StepRecord",
    "build_program",
    "gather_steps",
    "settings_model",
]

# Imported when first used: a program is a DSPy module.
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "decomp": ["DecomP"],
        "decompose_rag": ["DecomposeRAG"],
        "direct": ["CoT", "Direct"],
        "dsp": ["DSP"],
        "efficient_rag": ["EfficientRAG"],
        "ensemble": ["Ensemble"],
        "ircot": ["IRCoT"],
        "iter_retgen": ["IterRetGen"],
        "least_to_most": ["LeastToMost"],
        "program": ["Program"],
        "ra_isf": ["RAISF"],
        "rag": ["RAG"],
        "react": ["ReAct"],
        "recite": ["ReciteAndAnswer"],
        "record": ["StepRecord"],
        "replug": ["REPLUG"],
        "self_ask": ["SelfAsk"],
        "self_rag": ["SelfRAG"],
        "settings": ["PROGRAMS", "build_program", "settings_model"],
        "skr": ["SKR"],
        "trace": ["gather_steps"],
    },
)
