"""The typed signatures of every step."""

from hoptimizer.signatures.answering import Answer, AnswerWithChain, Read, ReadWithChain
from hoptimizer.signatures.reasoning import NextThought

__all__ = ["Answer", "AnswerWithChain", "NextThought", "Read", "ReadWithChain"]
