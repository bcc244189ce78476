"""Questions about two entities: ``comparison`` and ``yesno``."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import yaml

from hoptimizer.eval.atlas.chains import Chain, Step
from hoptimizer.eval.atlas.facts import CLEAR_GAP, HERE, Entity, Facts, capitalised, pick, rank
from hoptimizer.eval.atlas.questions import QuestionRow, Wording, rationale

# Values at most so many years apart count as near; near and far ones are asked about in turn.
NEAR = 15


@dataclass(frozen=True)
class Pair:
    """Two chains over the same columns.

    Attributes:
        ask: the wordings of the question.
        first, second: the two chains, in the order in which the question names their entities.
        group: the kind of thing that the question asks for; questions are taken from each group in turn.
        answer: the answer in running text.
        compared: the sentence of the chain of thought that compares the two values.
    """

    ask: list[str]
    first: Chain
    second: Chain
    group: str
    answer: str
    compared: str

    @property
    def side(self) -> str:
        """``yes``, ``no``, or whether the first or the second named is the answer; splits are balanced by it."""
        if self.answer in ("yes", "no"):
            return self.answer
        return "first" if self.answer == self.first[0].entity.name else "second"


def told_apart(facts: Facts, pair: Pair) -> bool:
    """Whether no accepted answer for the one could mean the other, as "Herschel" could with two Herschels."""
    one, other = pair.first[0].entity.name, pair.second[0].entity.name
    return not any(answer in other for answer in facts.answers(one)) and not any(
        answer in one for answer in facts.answers(other)
    )


def comparisons(facts: Facts) -> Iterator[Pair]:
    """Every pair whose values can be compared, once; the question asks for the lower or for the higher value."""
    for form in _forms("comparison"):
        for first, second in _both(facts, form):
            low, high = sorted((first, second), key=lambda chain: int(chain[-1].value))
            if _gap(first, second) < CLEAR_GAP:
                continue
            side = pick(["low", "high"], "side", first[0].entity.id, second[0].entity.id)
            right, wrong = (low, high) if side == "low" else (high, low)
            group = f"{_path(form)} {side} {_band(first, second)}"
            yield Pair(form[side], first, second, group, right[0].entity.name, _years_compared(right, wrong))


def yes_or_no(facts: Facts) -> Iterator[Pair]:
    """Every pair that a yes-or-no question fits, once."""
    for form in _forms("yesno"):
        for first, second in _both(facts, form):
            if form["test"] == "before":
                if _gap(first, second) < CLEAR_GAP:
                    continue
                answer = "yes" if int(first[-1].value) < int(second[-1].value) else "no"
                group = f"{_path(form)} {answer} {_band(first, second)}"
                yield Pair(form["ask"], first, second, group, answer, _years_compared(first, second))
            else:
                answer = "yes" if first[-1].value == second[-1].value else "no"
                compared = _values_compared(first, second, form["value"])
                yield Pair(form["ask"], first, second, f"{_path(form)} {answer}", answer, compared)


def about(wording: Wording, pair: Pair, type: str) -> QuestionRow:
    """The question about a pair, without an id."""
    names = [chain[0].entity.labelled for chain in (pair.first, pair.second)]
    plain = [chain[0].entity.name for chain in (pair.first, pair.second)]
    steps = [*pair.first, *pair.second]
    answers = [pair.answer] if pair.answer in ("yes", "no") else wording.facts.answers(pair.answer)
    return {
        "question": pick(pair.ask, "pair", *names).format(a=names[0], b=names[1], A=plain[0], B=plain[1]),
        "answers": answers,
        "passages": [step.entity.id for step in steps],
        "hops": [wording.hop(step) for step in steps],
        "rationale": rationale([*(wording.state(step) for step in steps), pair.compared], answers[0]),
        "type": type,
    }


def _forms(name: str) -> list[dict[str, Any]]:
    forms: list[dict[str, Any]] = yaml.safe_load((HERE / "wording_pairs.yaml").read_text(encoding="utf-8"))[name]
    return forms


def _path(form: dict[str, Any]) -> str:
    return f"{form['kind']}.{'.'.join(form['path'])}"


def _gap(first: Chain, second: Chain) -> int:
    return abs(int(first[-1].value) - int(second[-1].value))


def _band(first: Chain, second: Chain) -> str:
    return "near" if _gap(first, second) <= NEAR else "far"


def _years_compared(one: Chain, other: Chain) -> str:
    order = "earlier" if int(one[-1].value) < int(other[-1].value) else "later"
    return f"The year {one[-1].value} is {order} than {other[-1].value}."


def _values_compared(first: Chain, second: Chain, noun: str) -> str:
    one, other = first[-1].value, second[-1].value
    if one == other:
        return f"It is {one} in both cases."
    return f"{capitalised(one)} and {other} are different {noun}."


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
