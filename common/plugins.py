"""Parts by name: ours, those that installed packages bring as entry points, and anybody's by a dotted path."""

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from hoptimizer.common.errors import UserError, nearest

Part = TypeVar("Part")

DOTTED = r"^[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*$"
"""The pattern of a dotted path, ``package.module:Name``."""


class Registry(Generic[Part]):
    """The parts of one kind that a config can name.

    Args:
        kind: what messages call such a part.
        group: of the entry points by which packages bring theirs.
        own: ours, by name.
        fulfils: gives the part that a user's object is, or ``None`` where it is none of the kind.
        expected: what such an object has to be, for messages.

    >>> mappings = Registry("mapping", "my.mappings", {"plain": dict}, subclass_of(dict), "a subclass of dict")
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

    def get(self, name: str, key: str, also: Iterable[str] = ()) -> Part:
        """The part of a name or a dotted path.

        Args:
            name: as the config gives it.
            key: the config's key that gives it, for messages.
            also: what else the key takes, for messages.

        Raises:
            UserError: there is none, it can't be imported, or it is no part of this kind. What a user's own module
                raises otherwise is left as it is, with its traceback.
        """
        if name in self._own:
            return self._own[name]
        dotted = name if re.match(DOTTED, name) else _entry_point(self._group, name)
        if dotted is None:
            raise UserError(
                f"{key}: there is no {self._kind} {name!r}; {nearest(name, [*self.names, *also])}; or give your own as "
                "package.module:Name"
            )
        found = self._fulfils(_imported(dotted, key))
        if found is None:
            raise UserError(f"{key}: {dotted} is no {self._kind}; expected {self._expected}")
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
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(
            f"{key}: {dotted} can't be imported ({error}); install its package, or give the command in the folder that "
            "holds it"
        ) from error
    except AttributeError as error:
        raise UserError(f"{key}: the module {module} has no {name!r}; correct the name after the colon") from error


def subclass_of(base: type) -> Callable[[Any], Any]:
    """What makes sure that a user's object is a class of a kind.

    >>> subclass_of(Exception)(ValueError), subclass_of(Exception)(dict)
    (<class 'ValueError'>, None)
    """
    return lambda found: found if isinstance(found, type) and issubclass(found, base) else None
