"""The fact tables: reading them, and the entities that they describe."""

import hashlib
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field, replace
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

# Years closer together than this are not compared, because calendars and sources may differ.
CLEAR_GAP = 3

# Kinds whose names do not say what they are: questions put a word for it before the name.
LABELLED = ("music", "painting", "film", "moon", "element")

# Before a place in a table: it had another name then, or was not yet part of the town.
_NOW = "now "


class FactError(ValueError):
    """The tables contradict themselves; the message names the entry."""


@dataclass(frozen=True)
class Entity:
    """What one page is about.

    Attributes:
        kind: the table's kind, such as ``person``.
        name: as it stands in running text, with its article where it has one (``the Rhine``).
        fields: the values of the row's other columns as text, where they are known.
        renamed: the columns with a place that was called otherwise then, or was not yet part of the town.
        label: what questions call it, where ``labels.yaml`` says so.
    """

    kind: str
    name: str
    fields: dict[str, str] = field(compare=False, hash=False)
    renamed: frozenset[str] = field(default=frozenset(), compare=False)
    label: str | None = field(default=None, compare=False)

    @property
    def title(self) -> str:
        """The page's title: the name without its article, capitalised."""
        bare = bare_name(self.name)
        return capitalised(bare)

    @cached_property
    def id(self) -> str:
        """The page's id: the title in ASCII letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", fold(self.title).lower()).strip("-")

    @property
    def says_what(self) -> bool:
        """Whether the name says what it is, as that of a university does."""
        return self.fields["what"].split()[-1] in self.name.lower()

    @property
    def described(self) -> str:
        """The name after a word for what it is, unless the name says so itself: ``the opera Tosca``."""
        if self.says_what or self.name.startswith("the "):
            return self.name
        return f"the {'element' if self.kind == 'element' else self.fields['what']} {self.name}"

    @property
    def labelled(self) -> str:
        """The name as questions use it: with a description if the name alone could mean something else."""
        return self.label or (self.described if self.kind in LABELLED else self.name)

    def said(self, column: str) -> str:
        """The value of a column in a sentence about that time: ``what is now Kaliningrad``."""
        return f"what is now {self.fields[column]}" if column in self.renamed else self.fields[column]


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
        return Counter(_surname(person) for person in self.of("person"))

    @cached_property
    def _composers(self) -> Counter[str]:
        return Counter(_surname(person) for person in self.of("person") if person.fields["what"] == "composer")

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
        if ("river", name) in self._by_name:
            plain = names[0].removeprefix("River ").removesuffix(" River")
            names += [plain, f"River {plain}", f"{plain} River"]
        person = self._by_name.get(("person", name))
        if person and name not in self.aliases and " " in name and self._known_by_surname(person):
            names.append(_surname(person))
        return list(dict.fromkeys([*names, *map(fold, names)]))

    def _known_by_surname(self, person: Entity) -> bool:
        # "Wagner" alone is understood as the composer, although an architect has that name too.
        return self._surnames[_surname(person)] == 1 or (
            person.fields["what"] == "composer" and self._composers[_surname(person)] == 1
        )


def read(folder: Path = HERE) -> Facts:
    """The facts of every ``facts_*.yaml`` in a folder.

    Raises:
        FactError: a row is too short or too long, or two entities share a title.
    """
    entities = []
    for path in sorted(folder.glob("facts_*.yaml")):
        table = _load(path)
        entities += [_entity(table, row, path.name) for row in table["rows"]]
    twice = [id for id, count in Counter(entity.id for entity in entities).items() if count > 1]
    if twice:
        raise FactError(f"two entities with the same title: {', '.join(twice)}")
    labels = _load(folder / "labels.yaml")
    named = [replace(entity, label=labels.get(entity.name)) for entity in entities]
    return Facts(named, _load(folder / "aliases.yaml"))


def _load(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _entity(table: dict[str, Any], row: list[Any], place: str) -> Entity:
    if len(row) != len(table["columns"]):
        raise FactError(f"{place}: {row!r} has {len(row)} cells, not {len(table['columns'])}")
    fields = {column: str(value) for column, value in zip(table["columns"], row, strict=True) if value is not None}
    if table["kind"] == "country":
        fields["what"] = "country"
    renamed = frozenset(column for column, value in fields.items() if value.startswith(_NOW) and column in REFERENCES)
    fields |= {column: fields[column].removeprefix(_NOW) for column in renamed}
    return Entity(table["kind"], fields.pop("name"), fields, renamed)


def _surname(person: Entity) -> str:
    return person.name.split()[-1]


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
