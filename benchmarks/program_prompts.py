"""Prompts of a program, for benchmarks of engines: instructions and demonstrations that all share, then passages and a
question of atlas of their own, which the model is to think about and to answer."""

import random
from collections.abc import Iterator
from pathlib import Path

import dspy
from transformers import AutoTokenizer

from hoptimizer.eval.datasets.dataset import Question, load
from hoptimizer.models.engine.chat_template import render
from hoptimizer.signatures.answering import ReadWithReasoning

DEMOS, PASSAGES = 2, 5


def program_prompts(folder: str | Path, seed: int = 7) -> Iterator[list[int]]:
    """As many prompts as atlas has questions but for those that are shown, each with its gold passages among others.

    Args:
        folder: the model's, whose tokenizer and chat template they are for.
        seed: of the order.
    """
    data, tokenizer, draw = load("atlas"), AutoTokenizer.from_pretrained(folder), random.Random(seed)
    passages = {passage.id: passage.text for passage in data.corpus}

    def inputs(question: Question) -> dict[str, object]:
        shown = [*question.passages, *draw.sample(sorted(set(passages) - set(question.passages)), PASSAGES)][:PASSAGES]
        return {"context": [passages[name] for name in draw.sample(shown, PASSAGES)], "question": question.question}

    questions = [one for split in ("train", "dev", "test") for one in data.split(split)]
    draw.shuffle(questions)
    demos = [inputs(one) | {"reasoning": one.rationale, "answer": one.answers[0]} for one in questions[:DEMOS]]
    for question in questions[DEMOS:]:
        messages = dspy.JSONAdapter().format(ReadWithReasoning, demos, inputs(question))
        yield tokenizer(render(tokenizer, messages, True), add_special_tokens=False)["input_ids"]
