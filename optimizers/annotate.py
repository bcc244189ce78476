"""Training examples whose fields fill every step's demonstration, from a data set's annotations."""

import random
from collections.abc import Sequence

import dspy
import sentencex

from hoptimizer.eval.dataset import Question
from hoptimizer.retrieval import Corpus, Passage, Retriever

# How many results of a search are looked through for distractors.
_DEPTH = 20


def annotate(
    questions: Sequence[Question], corpus: Corpus, retriever: Retriever | None, *, distractors: int, seed: int
) -> list[dspy.Example]:
    """Make DSPy training examples that carry a value for each field of the programs' signatures.

    DSPy's optimizers take a demonstration's fields from its example by name. An annotated question knows them all:
    its supporting passages, mixed with ``distractors`` (IRCoT, section 4.2: M of 1 to 3 among a demonstration's
    paragraphs), its rationale as ``chain``, and one sentence of it as ``thought`` after the ``thoughts`` before it.

    Args:
        questions: from the train split.
        corpus: holds their supporting passages.
        retriever: finds the distractors, so that they look like what a program meets; ``None`` for programs that
            do not retrieve, whose demonstrations have no context.
        distractors: passages that do not support the answer, a question.
        seed: decides on order, and on which sentence of a rationale is the ``thought``.
    """
    found: list[list[Passage]] = [[] for _ in questions]
    if retriever is not None:
        found = retriever.search([question.question for question in questions], _DEPTH)
    rng = random.Random(seed)
    return [_example(q, corpus, results, distractors, rng) for q, results in zip(questions, found, strict=True)]


def _example(
    question: Question, corpus: Corpus, found: list[Passage], distractors: int, rng: random.Random
) -> dspy.Example:
    example = question.to_dspy()
    gold = [corpus[id] for id in question.passages]
    others = [passage for passage in found if passage.id not in question.passages]
    shown = gold + others[:distractors]
    rng.shuffle(shown)
    if gold and found:
        example = example.copy(context=[str(passage) for passage in shown])
    if question.rationale:
        sentences = [sentence.strip() for sentence in sentencex.segment("en", question.rationale)]
        step = rng.randrange(len(sentences))
        example = example.copy(chain=question.rationale, thoughts=" ".join(sentences[:step]), thought=sentences[step])
    return example.with_inputs("question")
