"""Chains of facts: from an entity through the entities that its page names to a value."""

from collections.abc import Iterator
from dataclasses import dataclass

from hoptimizer.eval.atlas.facts import Entity, Facts

# The longest chain, in steps.
LONGEST = 4


@dataclass(frozen=True)
class Step:
    """One fact of a chain: an entity, a column of its row, and the value there."""

    entity: Entity
    column: str
    value: str

    @property
    def renamed(self) -> bool:
        """Whether the value is a place that was called otherwise then."""
        return self.column in self.entity.renamed

    @property
    def said(self) -> str:
        """The value in a sentence about that time: ``what is now Kaliningrad``."""
        return self.entity.said(self.column)

    @property
    def relation(self) -> str:
        """The fact's relation, as ``wording_questions.yaml`` names it."""
        return f"{self.entity.kind}.{self.column}"


Chain = tuple[Step, ...]


def chains(facts: Facts, relations: set[str]) -> Iterator[Chain]:
    """Every chain of one to four steps over the given relations, in the order of the tables."""
    for entity in facts.entities:
        yield from _from(facts, entity, (), relations)


def _from(facts: Facts, entity: Entity, before: Chain, relations: set[str]) -> Iterator[Chain]:
    for column, value in entity.fields.items():
        step = Step(entity, column, value)
        if step.relation not in relations:
            continue
        chain = (*before, step)
        yield chain
        following = facts.follow(entity, column)
        if following and len(chain) < LONGEST:
            yield from _from(facts, following, chain, relations)


def signature(chain: Chain) -> str:
    """The relations of a chain; chains with the same signature ask for the same kind of thing."""
    return "+".join(step.relation for step in chain)


def parts(chain: Chain) -> Iterator[Chain]:
    """Every stretch of a chain, itself among them."""
    for start in range(len(chain)):
        for end in range(start + 1, len(chain) + 1):
            yield chain[start:end]


def circular(chain: Chain) -> bool:
    """Whether the answer occurs earlier in the chain, as with the capital of the country that Paris lies in."""
    return chain[-1].value in [step.entity.name for step in chain] + [step.value for step in chain[:-1]]


def gives_itself_away(chain: Chain) -> bool:
    """Whether the first entity's name holds the answer or an entity on the way (University of Vienna, Vienna)."""
    start = chain[0].entity.labelled.lower()
    return any(step.value.lower().removeprefix("the ") in start for step in chain if len(step.value) > 2)
