"""Parts by name: ours, those that installed packages bring as entry points, and anybody's by a dotted path."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from hoptimizer.common.errors import UserError, closest, nearest

Part = TypeVar("Part")

DOTTED = r"^[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*$"
"""The pattern of a dotted path, ``package.module:Name``."""

GROUPS = "hoptimizer."
"""How the groups of entry points begin by which packages bring parts."""


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

    @property
    def names(self) -> list[str]:
        """Ours first, then those of installed packages; what has one of our names is not among them."""
        return list(dict.fromkeys([*self._own, *(point.name for point in entry_points(group=self._group))]))

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
        if name in self._own:
            return None
        dotted = name if re.match(DOTTED, name) else _entry_point(self._group, name)
        if dotted is None:
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
    return getattr(imported, name)


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
