"""Parts by name: ours, those that installed packages bring as entry points, and anybody's by a dotted path."""

import hashlib
import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, TypeVar

from hoptimizer.common.errors import UserError, closest, nearest
from hoptimizer.common.options import Options

Part = TypeVar("Part")

DOTTED = r"^[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*$"
"""The pattern of a dotted path, ``package.module:Name``."""

GROUPS = "hoptimizer."
"""How the groups of entry points begin by which packages bring parts."""

_registries: "dict[str, Registry[Any]]" = {}
# By the name of a module of the user's: the import that its file was read after, and the hash of the file.
_sources: dict[str, tuple[ModuleSpec | None, str]] = {}


def is_code(name: str) -> bool:
    """Whether a name is the dotted path of a part whose module no installed package declares as one that has parts.

    Args:
        name: as a config gives it.

    Example:
        >>> from hoptimizer.common.plugins import is_code
        >>> is_code("rag"), is_code("mine.program:Own")
        (False, True)
    """
    if not re.match(DOTTED, name):
        return False
    found = entry_points()
    declared = (point for group in found.groups if group.startswith(GROUPS) for point in found.select(group=group))
    return name.partition(":")[0] not in {point.module for point in declared}


class Imported(Mapping[str, Part]):
    """Parts by name, each imported when it is first asked for.

    Args:
        places: of the parts, by name, as ``package.module:Name``.

    >>> mappings = Imported({"ordered": "collections:OrderedDict"})
    >>> list(mappings), mappings["ordered"]
    (['ordered'], <class 'collections.OrderedDict'>)
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> Part:
        part: Part = pkgutil.resolve_name(self._places[name])
        return part

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Registry(Generic[Part]):
    """The parts of one kind that a config can name.

    Args:
        kind: what messages call such a part.
        group: of the entry points by which packages bring theirs.
        own: ours, by name.
        fulfils: gives the part that a user's object is, or ``None`` where it is none of the kind.
        expected: what such an object has to be, for messages.

    >>> is_mapping = subclass_of("builtins:dict")
    >>> mappings = Registry("mapping", "my.mappings", {"plain": dict}, is_mapping, "a subclass of dict")
    >>> mappings.get("plain", "mapping.name"), mappings.get("collections:OrderedDict", "mapping.name")
    (<class 'dict'>, <class 'collections.OrderedDict'>)
    """

    def __init__(
        self, kind: str, group: str, own: Mapping[str, Part], fulfils: Callable[[Any], Part | None], expected: str
    ) -> None:
        self._kind, self._group, self._own = kind, group, own
        self._fulfils, self._expected = fulfils, expected
        _registries[group] = self

    @property
    def names(self) -> list[str]:
        """Ours first, then those of installed packages; what has one of our names is not among them."""
        return list(dict.fromkeys([*self._own, *(point.name for point in entry_points(group=self._group))]))

    def place(self, name: str) -> str | None:
        """The dotted path of a part that is none of ours; ``None`` for ours, and where there is none.

        Args:
            name: as the config gives it.
        """
        if name in self._own:
            return None
        return name if re.match(DOTTED, name) else _entry_point(self._group, name)

    def check(self, name: str, key: str, also: Iterable[str] = ()) -> str | None:
        """Make sure that there is a part of a name, without importing it.

        Args:
            name: as the config gives it.
            key: the config's key that gives it, for messages.
            also: what else the key takes, for messages.

        Returns:
            The dotted path of a part that is none of ours.

        Raises:
            UserError: there is none.
        """
        dotted = self.place(name)
        if dotted is None and name not in self._own:
            raise UserError(
                f"{key}: there is no {self._kind} {name!r}; {nearest(name, [*self.names, *also])}; or give your own as "
                "package.module:Name"
            )
        return dotted

    def get(self, name: str, key: str, also: Iterable[str] = ()) -> Part:
        """The part of a name or a dotted path.

        Args:
            name: as the config gives it.
            key: the config's key that gives it, for messages.
            also: what else the key takes, for messages.

        Raises:
            UserError: there is none, its module can't be imported (what the module raised is the cause), or it is no
                part of this kind.
        """
        dotted = self.check(name, key, also)
        if dotted is None:
            return self._own[name]
        imported = _imported(dotted, key)
        found = self._fulfils(imported)
        if found is None:
            raise UserError(f"{key}: {dotted} is no {self._kind}; expected {self._expected}")
        if left := _left_abstract(imported):
            raise UserError(f"{key}: {dotted} lacks {' and '.join(left)}; expected {self._expected} that has it")
        return found


@cache
def _entry_point(group: str, name: str) -> str | None:
    return next((point.value for point in entry_points(group=group, name=name)), None)


def _imported(dotted: str, key: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    module, _, name = dotted.partition(":")
    # The folder that the command is given in, as `python -m` has it; installed packages go before it.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            remedy = "install its package, or give the command in the folder that holds it"
            raise UserError(f"{key}: {dotted} can't be imported ({error}); {remedy}") from error
        raised = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{key}: {dotted} can't be imported, for its module raises {raised}") from error
    if not hasattr(imported, name):
        known = {there.lower(): there for there in vars(imported) if not there.startswith("_")}
        near = closest(name, known)
        hint = f"did you mean {known[near]!r}?" if near else "correct the name after the colon"
        raise UserError(f"{key}: the module {module} has no {name!r}; {hint}")
    for used in _modules(dotted):  # now: the file may be changed while what was imported goes on running
        _source(used)
    return getattr(imported, name)


def nested(options: Options) -> Iterator[Options]:
    """The options of a part, and those of the parts within it.

    Args:
        options: a section of a config, such as a hybrid retriever's.
    """
    yield options
    for _, value in options:
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Options):
                yield from nested(one)


def sources(named: Mapping[str, Iterable[str]]) -> str:
    """Tells parts that are none of ours from what they were before their code was changed.

    The file of a part's module counts, as it was when that was imported, and that of the module that defines it where
    it is another. What these import does not. Nothing is imported here: a part that has no file, or was not asked for,
    is told by its name alone.

    Args:
        named: names of parts, by the group of entry points of their kind without its beginning.

    Returns:
        hashes in JSON, by module; empty where there are none.

    >>> _ = Registry("mapping", "hoptimizer.mappings", {"plain": dict}, subclass_of("builtins:dict"), "a mapping")
    >>> sources({"mappings": ["plain"]}), list(json.loads(sources({"mappings": ["collections:OrderedDict"]})))
    ('', ['collections'])
    """
    wanted = ((_registries[GROUPS + group], name) for group, names in named.items() for name in names)
    places = {place for registry, name in wanted if (place := registry.place(name))}
    known = {module: found for place in places for module in _modules(place) if (found := _source(module))}
    return json.dumps(known, sort_keys=True) if known else ""


def _modules(dotted: str) -> set[str]:
    """The module of a dotted path, and the one that defines what is there."""
    module, _, name = dotted.partition(":")
    found = getattr(sys.modules.get(module), name, None)
    return {module, found.__module__ or module} if isinstance(found, type | FunctionType) else {module}


def _source(module: str) -> str:
    """The hash of the file of an imported module; empty where there is none to read."""
    imported = sys.modules.get(module)
    spec = getattr(imported, "__spec__", None)  # another one after each import
    if module not in _sources or _sources[module][0] is not spec:
        try:
            found = hashlib.sha256(Path(getattr(imported, "__file__", None) or "").read_bytes()).hexdigest()
        except OSError:
            found = ""
        _sources[module] = spec, found
    return _sources[module][1]


def _left_abstract(found: object) -> list[str]:
    """What a class leaves to its subclasses; not all of our bases have the metaclass that would notice."""
    bases = found.__mro__ if isinstance(found, type) else ()
    abstract = [name for base in bases for name, member in vars(base).items() if _is_abstract(member)]
    return [name for name in abstract if _is_abstract(getattr(found, name))]


def _is_abstract(member: object) -> bool:
    return getattr(member, "__isabstractmethod__", False)


def subclass_of(base: str) -> Callable[[Any], Any]:
    """What makes sure that a user's object is a class of a kind.

    Args:
        base: of the kind, as ``package.module:Name``; it is imported with the first object.

    >>> subclass_of("builtins:Exception")(ValueError), subclass_of("builtins:Exception")(dict)
    (<class 'ValueError'>, None)
    """
    return lambda found: found if isinstance(found, type) and issubclass(found, pkgutil.resolve_name(base)) else None
