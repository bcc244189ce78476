"""Questions about two entities: ``comparison`` and ``yesno``."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import yaml

from hoptimizer.eval.atlas.chains import Chain, Step
from hoptimizer.eval.atlas.facts import HERE, Entity, Facts, pick, rank
from hoptimizer.eval.atlas.questions import QuestionRow, Wording, rationale

# Years closer together than this are not compared, because calendars and sources may differ.
CLEAR_GAP = 3


@dataclass(frozen=True)
class Pair:
    """Two chains over the same columns.

    Attributes:
        form: the wording, an entry of ``wording_pairs.yaml``.
        first, second: the two chains, in the order in which the question names their entities.
        group: the kind of thing that the question asks for; questions are taken from each group in turn.
        answer: the answer in running text.
    """

    form: dict[str, Any]
    first: Chain
    second: Chain
    group: str
    answer: str


def comparisons(facts: Facts) -> Iterator[Pair]:
    """Every pair whose values can be compared, once; the question asks for the lower or for the higher value."""
    for form in _forms("comparison"):
        for first, second in _both(facts, form):
            low, high = sorted((first, second), key=lambda chain: int(chain[-1].value))
            if int(high[-1].value) - int(low[-1].value) >= CLEAR_GAP:
                side = pick(["low", "high"], "side", first[0].entity.id, second[0].entity.id)
                answer = low if side == "low" else high
                yield Pair({"ask": form[side]}, first, second, _group(form, side), answer[0].entity.name)


def yes_or_no(facts: Facts) -> Iterator[Pair]:
    """Every pair that a yes-or-no question fits, once."""
    for form in _forms("yesno"):
        for first, second in _both(facts, form):
            if form["test"] == "before":
                gap = int(second[-1].value) - int(first[-1].value)
                if abs(gap) < CLEAR_GAP:
                    continue
                answer = "yes" if gap > 0 else "no"
            else:
                answer = "yes" if first[-1].value == second[-1].value else "no"
            yield Pair(form, first, second, _group(form, answer), answer)


def about(wording: Wording, pair: Pair, type: str) -> QuestionRow:
    """The question about a pair, without an id."""
    names = [chain[0].entity.labelled for chain in (pair.first, pair.second)]
    plain = [chain[0].entity.name for chain in (pair.first, pair.second)]
    steps = [*pair.first, *pair.second]
    answers = ["yes"] if pair.answer == "yes" else ["no"] if pair.answer == "no" else wording.facts.answers(pair.answer)
    return {
        "question": pick(pair.form["ask"], "pair", *names).format(a=names[0], b=names[1], A=plain[0], B=plain[1]),
        "answers": answers,
        "passages": [step.entity.id for step in steps],
        "hops": [wording.hop(step) for step in steps],
        "rationale": rationale([wording.state(step) for step in steps], answers[0]),
        "type": type,
    }


def _forms(name: str) -> list[dict[str, Any]]:
    forms: list[dict[str, Any]] = yaml.safe_load((HERE / "wording_pairs.yaml").read_text(encoding="utf-8"))[name]
    return forms


def _group(form: dict[str, Any], side: str) -> str:
    return f"{form['kind']}.{'.'.join(form['path'])} {side}"


def _both(facts: Facts, form: dict[str, Any]) -> Iterator[tuple[Chain, Chain]]:
    """The pairs of chains along the form's path that share no entity, each in one of its two orders."""
    found = [chain for entity in facts.of(form["kind"]) if (chain := _walk(facts, entity, form["path"]))]
    for one, other in combinations(found, 2):
        if {step.entity for step in one}.isdisjoint(step.entity for step in other):
            yield (one, other) if rank(one[0].entity.id, other[0].entity.id) % 2 else (other, one)


def _walk(facts: Facts, entity: Entity, path: list[str]) -> Chain | None:
    steps: list[Step] = []
    for column in path:
        if column not in entity.fields:
            return None
        steps.append(Step(entity, column, entity.fields[column]))
        following = facts.follow(entity, column)
        if len(steps) < len(path):
            if following is None:
                return None
            entity = following
    return tuple(steps)
