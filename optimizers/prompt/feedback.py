"""What a data set knows of where a program's run went wrong, in words that a language model can reflect on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dspy

from hoptimizer.eval.metrics import normalize
from hoptimizer.optimizers.labels.annotations import subquestions, supporting
from hoptimizer.programs.record import StepRecord
from hoptimizer.retrieval import Corpus


class Feedback:
    """A metric for GEPA: the score of a run, and for one of its steps what was wrong.

    It says which supporting passages each retrieval missed, which of them the reader saw, where the chain of thought
    left the annotated hops, which passages were judged wrong, and how the question should have been split up.

    Args:
        objective: scores a run.
        corpus: has the titles of the passages.
    """

    def __init__(self, objective: Callable[..., float], corpus: Corpus) -> None:
        self._objective, self._corpus = objective, corpus

    def __call__(
        self,
        gold: dspy.Example,
        pred: dspy.Prediction,
        trace: Any = None,  # noqa: ANN401 - DSPy's
        pred_name: str | None = None,
        pred_trace: Any = None,  # noqa: ANN401 - DSPy's
    ) -> float | dspy.Prediction:
        """Score a run; with ``pred_name`` a prediction of ``score`` and ``feedback`` for that step."""
        score = self._objective(gold, pred, trace)
        if pred_name is None:
            return score
        lines = [f"The program's answer was {pred.answer!r}; right is {gold.answer!r}. The score is {score:.2f}."]
        lines += self._retrieved(gold, pred.steps)
        taken = [record for record in pred.steps if record.step == pred_name]
        lines += {
            "reason": self._reasoned,
            "reader": self._read,
            "relevance": self._judged,
            "decompose": self._split,
        }.get(pred_name, _nothing)(gold, taken)
        return dspy.Prediction(score=score, feedback="\n".join(lines))

    def _retrieved(self, gold: dspy.Example, steps: Sequence[StepRecord]) -> Iterator[str]:
        """Which supporting passages were found by which search, and which by none."""
        searches = [record for record in steps if record.kind == "retrieval"]
        missing = set(supporting(gold))
        for number, search in enumerate(searches, 1):
            found = missing.intersection(search.outputs["passages"])
            missing -= found
            titles = self._titles(found) or "no supporting passage that was missing"
            yield f"Search {number}, for {search.inputs['query']!r}, found {titles}."
        for hop in gold.hops:
            if hop.passage in missing:
                yield f"No search found {self._titles([hop.passage])}, which says: {hop.question} {hop.answer}"
                missing.discard(hop.passage)
        if missing and searches:
            yield f"No search found {self._titles(missing)}."

    def _read(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """What the reader saw of what it needed."""
        for record in taken:
            if "context" in record.inputs and supporting(gold):
                seen = set(supporting(gold)).intersection(record.inputs["context"])
                yield (
                    f"The reader saw {len(record.inputs['context'])} passages, among them {len(seen)} of the "
                    f"{len(supporting(gold))} that support the answer: {self._titles(seen) or 'none'}."
                )
            if "chain" in record.outputs:
                yield from _left(gold, [record.outputs["chain"] or ""])

    def _reasoned(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """Where the chain left the hops."""
        thoughts = [record.outputs["thought"] or "" for record in taken]
        yield from (f"Thought {number} was {thought!r}." for number, thought in enumerate(thoughts, 1))
        yield from _left(gold, thoughts)

    def _judged(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """Which passages were judged wrong."""
        for record in taken:
            supports, said = record.inputs["passage"] in supporting(gold), record.outputs["relevant"] == "yes"
            if supports != said:
                title, judged = self._titles([record.inputs["passage"]]), "relevant" if said else "not relevant"
                yield f"{title} was judged {judged}, and {'supports' if supports else 'does not support'} the answer."

    def _split(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """How the question should have been split up."""
        for record in taken[:1]:
            yield f"It was split up into {record.outputs['subquestions']}."
        if split := subquestions(gold):
            yield f"Right would be: {split}."

    def _titles(self, ids: Any) -> str:  # noqa: ANN401 - any iterable of ids
        return ", ".join(f"{self._corpus[id].title!r}" for id in sorted(ids))


def _left(gold: dspy.Example, thoughts: Sequence[str]) -> Iterator[str]:
    """The first hop whose answer the thoughts lack."""
    said = normalize(" ".join(thoughts))
    for number, hop in enumerate(gold.hops, 1):
        if normalize(hop.answer) not in said:
            place = f"hop {number} of {len(gold.hops)}"
            yield f"The reasoning leaves the right chain at {place}: {hop.question} {hop.answer}"
            return


def _nothing(gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
    return iter(())
