"""Feedback from a data set's annotations on where a run went wrong, as text for a language model to reflect on."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import dspy

from hoptimizer.eval.answers import normalize
from hoptimizer.eval.datasets.question import Hop
from hoptimizer.eval.objective import Objective
from hoptimizer.optimizers.labels.annotations import Unannotated, holding, hop_of, supporting
from hoptimizer.optimizers.labels.decomposition import (
    later_query,
    next_question,
    ordered_subquestions,
    subquestions,
    task_question,
)
from hoptimizer.programs.question_tree import normalized
from hoptimizer.programs.record import StepRecord
from hoptimizer.retrieval import Corpus

# Outputs that hold a chain of thought, and one sentence of it.
_CHAINS = frozenset({"chain", "reasoning"})
_THOUGHTS = frozenset({"thought", "next_thought"})

Describe = Callable[[dspy.Example, Sequence[StepRecord]], Iterator[str]]
"""A function that describes what went wrong in the records of one step."""


class Feedback:
    """A metric for GEPA: the score of a run, and for one of its steps a text about what went wrong.

    The text says which supporting passages each retrieval missed, which of them the reader saw, where the chain of
    thought left the annotated hops, what was still to be looked up, which passages were misjudged, how the question
    should have been split, and what should have been asked next.

    Of a weighted sum the score also has its terms, so that GEPA keeps what is best in one of them.

    Args:
        objective: scores a run.
        corpus: holds the passages, whose titles the text names.
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
        """Score a run, and describe what went wrong in one of its steps.

        Args:
            gold: the annotated question.
            pred: the program's prediction.
            trace: the run's trace, which the objective is given.
            pred_name: the step to describe; ``None`` for none.
            pred_trace: the step's trace, which is not used.

        Returns:
            the score; with ``pred_name`` a prediction with ``score`` and ``feedback``. Of a weighted sum it is always a
            prediction, which has ``objective_scores``, too.
        """
        terms: dict[str, float] = {}
        if isinstance(self._objective, Objective) and not self._objective.is_metric:
            score, terms = self._objective.with_terms(gold, pred)
        else:
            score = self._objective(gold, pred, trace)
        if pred_name is None:
            return dspy.Prediction(score=score, objective_scores=terms) if terms else score
        lines = [f"The program's answer was {pred.answer!r}; right is {gold.answer!r}. The score is {score:.2f}."]
        lines += self._retrieved(gold, pred.steps)
        taken = [record for record in pred.steps if record.step == pred_name]
        describe: dict[str, Describe] = {
            "reason": self._reasoned,
            "follow_up": _followed_up,
            "reader": self._read,
            "relevance": self._judged,
            "sufficiency": self._judged_together,
            "decompose": self._split,
            "ask": partial(_asked, "next_question", next_question),
            "plan": partial(_asked, "task_question", task_question),
            "first_query": partial(_asked, "first_query", next_question),
            "next_query": partial(_asked, "search_query", later_query),
        }
        lines += describe.get(pred_name, _nothing)(gold, taken)
        told = {"objective_scores": terms} if terms else {}
        return dspy.Prediction(score=score, feedback="\n".join(lines), **told)

    def _retrieved(self, gold: dspy.Example, steps: Sequence[StepRecord]) -> Iterator[str]:
        """Say which supporting passages each search brought, and which no search brought."""
        collected = list(_collected(steps))
        missing = set(supporting(gold))
        for number, (search, taken) in enumerate(collected, 1):
            found, complete = missing & taken, not missing
            missing -= found
            titles = self._titles(found) or "no supporting passage that was missing"
            said = "came when all supporting passages had been found" if complete else f"found {titles}"
            yield f"Search {number}, for {search.inputs['query']!r}, {said}."
        if late := missing.intersection(passage for search, _ in collected for passage in search.outputs["passages"]):
            missing -= late
            yield f"{self._titles(late)} came from these searches, too, but after the chain had ended."
        for hop in gold.hops:
            if hop.passage in missing:
                yield f"No search found {self._titles([hop.passage])}, which says: {hop.question} {hop.answer}"
                missing.discard(hop.passage)
        if missing and collected:
            yield f"No search found {self._titles(missing)}."

    def _read(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """Say how many of the supporting passages the reader saw."""
        for record in taken:
            if "context" in record.inputs and supporting(gold):
                seen = set(supporting(gold)).intersection(record.inputs["context"])
                yield (
                    f"The reader saw {len(record.inputs['context'])} passages, among them {len(seen)} of the "
                    f"{len(supporting(gold))} that support the answer: {self._titles(seen) or 'none'}."
                )
            for field in _CHAINS.intersection(record.outputs):
                yield from _left(gold, [record.outputs[field] or ""])

    def _reasoned(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """Say where the chain of thought left the annotated hops."""
        thoughts = [text or "" for record in taken for name, text in record.outputs.items() if name in _THOUGHTS]
        yield from (f"Thought {number} was {thought!r}." for number, thought in enumerate(thoughts, 1))
        yield from _left(gold, thoughts)

    def _judged(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """Say which passages were misjudged."""
        for record, hop in _annotated(gold, taken):
            holds = record.inputs["passage"] in holding(gold, self._corpus, hop)
            said = record.outputs["relevant"] == "yes"
            if holds != said:
                title, judged = self._titles([record.inputs["passage"]]), "relevant" if said else "not relevant"
                holds_it = "holds the answer" if holds else "does not hold the answer"
                yield f"{title} was judged {judged} for {record.inputs['question']!r}, and {holds_it}."

    def _judged_together(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """Say for which questions it was misjudged whether the passages suffice."""
        for record, hop in _annotated(gold, taken):
            missing = set(supporting(gold, hop)).difference(record.inputs["retrieved"])
            said = record.outputs["sufficient"] == "yes"
            if bool(missing) == said:
                judged = "sufficient" if said else "not sufficient"
                lacking = f"{self._titles(missing)} is missing" if missing else "nothing is missing"
                yield f"The passages for {record.inputs['question']!r} were judged {judged}, and {lacking}."

    def _split(self, gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
        """Say how the question should have been split."""
        for record in taken[:1]:
            ordered = "ordered_subquestions" in record.outputs
            yield f"It was split up into {record.outputs['ordered_subquestions' if ordered else 'subquestions']}."
            if split := ordered_subquestions(gold) if ordered else subquestions(gold):
                yield f"Right would be: {split}."

    def _titles(self, ids: Any) -> str:  # noqa: ANN401 - any iterable of ids
        # A server may hold passages that the corpus does not.
        return ", ".join(f"{self._corpus[id].title if id in self._corpus else id!r}" for id in sorted(ids))


def _followed_up(gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
    """Say after which thoughts it was misjudged whether the answer follows, and what was still to be looked up."""
    for number, record in enumerate(taken, 1):
        missing, enough = _first_unsaid(gold, [record.inputs["facts"]]), record.outputs["enough"] == "yes"
        said = "the answer follows" if enough else f"{record.outputs['look_up']!r} must be looked up"
        if missing:
            yield f"After thought {number} it was said: {said}. To look up was: {gold.hops[missing - 1].question}"
        elif gold.hops and not enough:
            yield f"After thought {number} it was said: {said}. But the answer follows."


def _asked(
    field: str, right: Callable[[dspy.Example, int], str], gold: dspy.Example, taken: Sequence[StepRecord]
) -> Iterator[str]:
    """Say what was asked for, and what the hops would have asked for in its place."""
    for place, record in enumerate(taken if gold.hops else ()):
        asked, due = record.outputs[field] or "", right(gold, place)
        if normalized(asked) != normalized(due):
            yield f"Number {place + 1} was {asked!r}. Right would be: {due or 'nothing more'}"


def _collected(steps: Sequence[StepRecord]) -> Iterator[tuple[StepRecord, set[str]]]:
    """Each search with the passages that it brought: of a chain those that were read next, else all that it found.

    IRCoT searches for more than it takes in at first, and fills up with the rest when its chain has ended.
    """
    reading = ("reason", "reader") if any(record.step == "reason" for record in steps) else ()
    for place, search in enumerate(steps):
        if search.kind != "retrieval":
            continue
        found = set(search.outputs["passages"])
        after = takewhile(lambda record: record.kind != "retrieval", steps[place + 1 :])
        read = next((record.inputs.get("context", found) for record in after if record.step in reading), found)
        yield search, found.intersection(read)


def _left(gold: dspy.Example, thoughts: Sequence[str]) -> Iterator[str]:
    """Name the first hop whose answer the thoughts do not contain."""
    if number := _first_unsaid(gold, thoughts):
        hop, place = gold.hops[number - 1], f"hop {number} of {len(gold.hops)}"
        yield f"The reasoning leaves the right chain at {place}: {hop.question} {hop.answer}"


def _first_unsaid(gold: dspy.Example, thoughts: Sequence[str]) -> int | None:
    """The number of the first hop whose answer the thoughts do not contain."""
    said = normalize(" ".join(thoughts))
    return next((number for number, hop in enumerate(gold.hops, 1) if normalize(hop.answer) not in said), None)


def _annotated(gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[tuple[StepRecord, Hop | None]]:
    """Those of a step's records that ask about the question or a hop whose supporting passages are known."""
    for record in taken:
        try:
            hop = hop_of(gold, record.inputs["question"])
        except Unannotated:
            continue
        if supporting(gold, hop):
            yield record, hop


def _nothing(gold: dspy.Example, taken: Sequence[StepRecord]) -> Iterator[str]:
    return iter(())
