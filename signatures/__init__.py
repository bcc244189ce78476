"""The typed signatures of every step."""

from hoptimizer.signatures.answering import Answer, AnswerWithChain, Read, ReadWithChain
from hoptimizer.signatures.decomposing import Combine, Decompose
from hoptimizer.signatures.judging import Relevance, SelfKnowledge
from hoptimizer.signatures.reasoning import NextThought

__all__ = [
    "Answer",
    "AnswerWithChain",
    "Combine",
    "Decompose",
    "NextThought",
    "Read",
    "ReadWithChain",
    "Relevance",
    "SelfKnowledge",
]
