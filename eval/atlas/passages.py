"""The pages of the corpus: sentences made from the facts of an entity."""

import string
from collections.abc import Mapping
from typing import Any

import yaml

from hoptimizer.eval.atlas.facts import HERE, Entity, Facts, capitalised, pick
from hoptimizer.eval.atlas.links import links

_VOWELS = "aeiou"


def passages(facts: Facts) -> list[dict[str, str]]:
    """The rows of ``corpus.jsonl``, a page for each entity in the order of the tables: ``id``, ``title``, ``text``."""
    layouts = yaml.safe_load((HERE / "wording_passages.yaml").read_text(encoding="utf-8"))
    return [
        {"id": entity.id, "title": entity.title, "text": _text(facts, entity, layouts[entity.kind])}
        for entity in facts.entities
    ]


def _text(facts: Facts, entity: Entity, layouts: list[list[Any]]) -> str:
    values = _values(facts, entity)
    sentences = []
    for slot in pick(layouts, "layout", entity.id):
        alternatives = [slot] if isinstance(slot, str) else slot
        known = [form for form in alternatives if _fields(form) <= values.keys()]
        if known:
            sentences.append(known[0].format_map(values))
    return " ".join(map(capitalised, sentences))


def _fields(form: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(form) if name}


def _values(facts: Facts, entity: Entity) -> Mapping[str, str]:
    """The values that the layouts may mention of an entity."""
    said = {column: entity.said(column) for column in entity.fields}
    # No sentence begins with a numeral, as "2001" would in "2001: A Space Odyssey is a film".
    opening = entity.described if entity.name[0].isdigit() else entity.name
    values = {**said, **links(facts, entity), "x": entity.name, "X": capitalised(opening)}
    values["described"] = entity.described
    if not entity.says_what:  # "Charles University is a university" would say nothing
        values["a_what"] = with_article(entity.fields["what"])
    if entity.kind == "person":
        she = values["sex"] == "f"
        values |= {"He": "She" if she else "He", "His": "Her" if she else "His"}
        # "He died there" reads better than the place's name a second time.
        if values.get("birthplace") and values.get("birthplace") == values.get("deathplace"):
            at_home = {"there_too": "there too", "died_at_home": values["died"]}
            values |= {**at_home, "deathplace_at_home": values["deathplace"]}
    return values


def with_article(noun: str) -> str:
    """The noun with ``a`` or ``an``."""
    vowel = noun[0].lower() in _VOWELS and not noun.startswith("uni")
    return f"{'an' if vowel else 'a'} {noun}"
