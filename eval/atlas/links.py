"""Sentences that mention a page's neighbours.

They are true by the tables and make the pages read less like forms. Above all they put names and words of other
entities into every page, so that a search by keywords alone is led astray as it would be in an encyclopedia.
"""

from collections.abc import Callable

from hoptimizer.eval.atlas.facts import CLEAR_GAP, Entity, Facts, capitalised, pick, rank

_PLURAL = {"city": "cities", "town": "towns"}

Link = Callable[[Facts, Entity], str | None]


def links(facts: Facts, entity: Entity) -> dict[str, str]:
    """The ``*_link`` sentences of a page by their field's name, without those for which there is nothing to say."""
    made = {name: link(facts, entity) for name, link in _LINKS.get(entity.kind, {}).items()}
    return {name: sentence for name, sentence in made.items() if sentence}


def _others(facts: Facts, entity: Entity, column: str) -> list[Entity]:
    """The other entities of the same kind and with the same value in a column, shuffled; none if it is unknown."""
    value = entity.fields.get(column)
    same = [other for other in facts.of(entity.kind) if other != entity and other.fields.get(column) == value]
    return sorted(same, key=lambda other: rank("link", entity.id, other.id)) if value else []


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _apart(entity: Entity, other: Entity, column: str) -> int:
    """How many years later the first one is, by the difference of calendar years."""
    return int(entity.fields[column]) - int(other.fields[column])


def _comparable(entity: Entity, other: Entity, column: str) -> bool:
    """Whether both have a year, and the same one or clearly another: "2 years before" can be 13 months."""
    if column not in entity.fields or column not in other.fields:
        return False
    return _apart(entity, other, column) == 0 or abs(_apart(entity, other, column)) >= CLEAR_GAP


def _fellow(facts: Facts, entity: Entity) -> str | None:
    """A sentence on another person from the same place, else on how much older or younger a colleague was."""
    neighbours = _others(facts, entity, "birthplace")
    if neighbours:
        other = neighbours[0].described
        forms = [f"{capitalised(other)} came from the same place.", f"{capitalised(other)} was born in the same place."]
        return str(pick(forms, "fellow", entity.id))
    colleagues = [other for other in _others(facts, entity, "what") if _comparable(entity, other, "born")]
    colleagues.sort(key=lambda other: abs(_apart(entity, other, "born")))
    if not colleagues:
        return None
    other = pick(colleagues[:5], "colleague", entity.id)
    gap = _apart(entity, other, "born")
    pronoun = "She" if entity.fields["sex"] == "f" else "He"
    when = "in the same year as" if gap == 0 else f"about {abs(gap)} years {'after' if gap > 0 else 'before'}"
    return f"{pronoun} was born {when} {other.described}."


def _sibling(facts: Facts, entity: Entity) -> str | None:
    """A sentence on another work of the same person."""
    others = _others(facts, entity, "author")
    if not others:
        return None
    forms = {
        "book": ["The same author also wrote {}.", "Another work by the same hand is {}."],
        "music": ["The same composer also wrote {}.", "Another work by the same composer is {}."],
        "painting": ["The same artist also made {}.", "Another work by the same artist is {}."],
        "building": ["The same person also designed {}.", "Another design by the same person is {}."],
        "film": ["The same director also made {}.", "The director of {} made this one too."],
        "element": ["The same scientist also discovered {}."],
        "moon": ["The same astronomer also found {}."],
    }[entity.kind]
    return str(pick(forms, "sibling", entity.id)).format(others[0].described)


def _other_finding(facts: Facts, entity: Entity) -> str | None:
    others = [o for o in facts.of("finding") if o != entity and _comparable(entity, o, "year")]
    if not others:
        return None
    other = pick(others, "finding", entity.id)
    gap = _apart(entity, other, "year")
    when = "in the same year" if gap == 0 else f"about {abs(gap)} years {'before' if gap > 0 else 'later'}"
    return f"{other.fields['author']} {other.fields['verb']} {other.name} {when}."


def _older(facts: Facts, entity: Entity) -> str | None:
    """A sentence that compares the age with that of another entity of the same kind."""
    others = [other for other in facts.of(entity.kind) if other.fields.get("year", "") != entity.fields.get("year")]
    others = [other for other in others if "year" in other.fields and other.fields.get("city") != entity.fields["city"]]
    if "year" not in entity.fields or not others:
        return None
    other = pick(others, "older", entity.id)
    compared = "older" if int(entity.fields["year"]) < int(other.fields["year"]) else "younger"
    return f"It is {compared} than {other.name}."


def _native(facts: Facts, entity: Entity) -> str | None:
    """A sentence on a person who was born in the place, or who died there."""
    for column, form in (("birthplace", "{} was born there."), ("deathplace", "{} died there.")):
        people = [person for person in facts.of("person") if person.fields.get(column) == entity.name]
        if people:
            return capitalised(form.format(pick(people, "native", entity.id).described))
    return None


def _cities(column: str) -> Link:
    def link(facts: Facts, entity: Entity) -> str | None:
        places = [city for city in facts.of("city") if city.fields.get(column) == entity.name]
        places = sorted(places, key=lambda place: rank("cities", entity.id, place.name))[:3]
        if not places:
            return None
        there = _list(sorted(place.name for place in places))
        if column == "river":
            return f"{there} {'lies' if len(places) == 1 else 'lie'} on it."
        kinds = _list(sorted({_PLURAL[place.fields["what"]] for place in places}))
        return f"{there} {'is' if len(places) == 1 else 'are'} among its {kinds}."

    return link


_LINKS: dict[str, dict[str, Link]] = {
    "person": {"fellow_link": _fellow},
    **{
        kind: {"sibling_link": _sibling}
        for kind in ("book", "music", "painting", "building", "film", "element", "moon")
    },
    "finding": {"sibling_link": _other_finding},
    "university": {"sibling_link": _older},
    "museum": {"sibling_link": _older},
    "city": {"native_link": _native},
    "river": {"cities_link": _cities("river")},
    "country": {"cities_link": _cities("country")},
}
