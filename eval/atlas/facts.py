"""The fact tables: reading them, and the entities that they describe."""

import hashlib
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent

# The columns that name an entity, with the kind of that entity; all other columns hold plain values.
REFERENCES = {
    "author": "person",
    "birthplace": "city",
    "deathplace": "city",
    "city": "city",
    "museum": "museum",
    "river": "river",
    "country": "country",
}

# Kinds whose names do not say what they are: questions put a word for it before the name.
LABELLED = ("music", "painting", "film", "moon", "element")


class FactError(ValueError):
    """The tables contradict themselves; the message names the entry."""


@dataclass(frozen=True)
class Entity:
    """What one page is about.

    Attributes:
        kind: the table's kind, such as ``person``.
        name: as it stands in running text, with its article where it has one (``the Rhine``).
        fields: the values of the row's other columns as text, where they are known.
    """

    kind: str
    name: str
    fields: dict[str, str] = field(compare=False, hash=False)

    @property
    def title(self) -> str:
        """The page's title: the name without its article, capitalised."""
        bare = bare_name(self.name)
        return capitalised(bare)

    @property
    def id(self) -> str:
        """The page's id: the title in ASCII letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", fold(self.title).lower()).strip("-")

    @property
    def described(self) -> str:
        """The name after a word for what it is, unless the name says so itself: ``the opera Tosca``."""
        what = self.fields["what"]
        if what.split()[-1] in self.name.lower() or self.name.startswith("the "):
            return self.name
        return f"the {'element' if self.kind == 'element' else what} {self.name}"

    @property
    def labelled(self) -> str:
        """The name as questions use it: with a description if the name alone could mean something else."""
        return self.described if self.kind in LABELLED else self.name


@dataclass(frozen=True)
class Facts:
    """Every entity, in the order of the tables.

    Attributes:
        entities: all entities; names are unique within a kind, titles among all entities.
        aliases: other names of an entity by its name, as ``aliases.yaml`` has them.
    """

    entities: list[Entity]
    aliases: dict[str, list[str]]

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Entity]:
        return {(entity.kind, entity.name): entity for entity in self.entities}

    @cached_property
    def _surnames(self) -> Counter[str]:
        return Counter(entity.name.split()[-1] for entity in self.entities if entity.kind == "person")

    def of(self, kind: str) -> list[Entity]:
        """The entities of a kind."""
        return [entity for entity in self.entities if entity.kind == kind]

    def follow(self, entity: Entity, column: str) -> Entity | None:
        """The entity that a column names; ``None`` if it is unknown or has no page."""
        value = entity.fields.get(column)
        kind = REFERENCES.get(column)
        return self._by_name.get((kind, value)) if kind and value else None

    def answers(self, name: str) -> list[str]:
        """A name as an answer: without its article, then its aliases, each once."""
        names = [bare_name(name), *self.aliases.get(name, [])]
        is_person = ("person", name) in self._by_name
        if name not in self.aliases and is_person and " " in name and self._surnames[name.split()[-1]] == 1:
            names.append(name.split()[-1])
        return list(dict.fromkeys([*names, *map(fold, names)]))


def read(folder: Path = HERE) -> Facts:
    """The facts of every ``facts_*.yaml`` in a folder.

    Raises:
        FactError: a row is too short or too long, or two entities share a title.
    """
    entities = []
    for path in sorted(folder.glob("facts_*.yaml")):
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        entities += [_entity(table, row, path.name) for row in table["rows"]]
    twice = [id for id, count in Counter(entity.id for entity in entities).items() if count > 1]
    if twice:
        raise FactError(f"two entities with the same title: {', '.join(twice)}")
    return Facts(entities, yaml.safe_load((folder / "aliases.yaml").read_text(encoding="utf-8")))


def _entity(table: dict[str, Any], row: list[Any], place: str) -> Entity:
    if len(row) != len(table["columns"]):
        raise FactError(f"{place}: {row!r} has {len(row)} cells, not {len(table['columns'])}")
    fields = {column: str(value) for column, value in zip(table["columns"], row, strict=True) if value is not None}
    if table["kind"] == "country":
        fields["what"] = "country"
    return Entity(table["kind"], fields.pop("name"), fields)


def bare_name(name: str) -> str:
    """A name without a leading lower-case article; titles such as *The Trial* keep theirs."""
    return name.removeprefix("the ")


def capitalised(text: str) -> str:
    """The text with its first letter in upper case, as at the start of a sentence."""
    return text[0].upper() + text[1:]


def fold(text: str) -> str:
    """The text in ASCII: accents are dropped, special letters replaced."""
    for letter, plain in {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "ß": "ss", "æ": "ae", "–": "-"}.items():
        text = text.replace(letter, plain)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def rank(*parts: str) -> int:
    """A number that looks random but is the same on every machine and Python: the SHA-256 of the parts."""
    return int(hashlib.sha256("\x1f".join(parts).encode()).hexdigest(), 16)


def pick(options: list[Any], *parts: str) -> Any:  # noqa: ANN401 - whatever the options are
    """One of the options, chosen by :func:`rank`."""
    return options[rank(*parts) % len(options)]
