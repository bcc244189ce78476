"""The typed signatures of every step."""

from hoptimizer.signatures.answering import Answer, AnswerWithChain, Read, ReadWithChain
from hoptimizer.signatures.decomposing import Combine, Decompose
from hoptimizer.signatures.hopping import LabelPassage, NextQuery
from hoptimizer.signatures.judging import Relevance, SelfKnowledge
from hoptimizer.signatures.reasoning import NextThought
from hoptimizer.signatures.synthesis import FindDependencies, LabelWords, SplitByPassages

__all__ = [
    "Answer",
    "AnswerWithChain",
    "Combine",
    "Decompose",
    "FindDependencies",
    "LabelPassage",
    "LabelWords",
    "NextQuery",
    "NextThought",
    "Read",
    "ReadWithChain",
    "Relevance",
    "SelfKnowledge",
    "SplitByPassages",
]
