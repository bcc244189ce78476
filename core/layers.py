"""The sources of a config, one over the other: a run's config, a file, the arguments of a command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hoptimizer.common.errors import UserError
from hoptimizer.common.strict import Key, read_argument, value_at
from hoptimizer.models.settings import LMSettings
from hoptimizer.stored import guarded
from hoptimizer.upgrade import LM_NAMES

_NAMED = ("data", "program", "retriever", "optimizer", "executor")
_OF_AN_LM = frozenset({*LMSettings.model_fields, *LM_NAMES})


@dataclass(frozen=True)
class Replaced:
    """A name that gave way to another.

    Attributes:
        key: of the section.
        old: the name that it had.
        new: the name that it has.
        options: what was set for the old one and is not for the new one.
    """

    key: Key
    old: str
    new: str
    options: dict[str, Any]

    def note(self, resolved: Mapping[str, Any], *, shared: bool) -> str | None:
        """What a user has to know of it, in one line without values; ``None`` where nothing was lost.

        Args:
            resolved: the config that resulted, as plain data.
            shared: whether options are left out that what has taken the place does not have.
        """
        section = value_at(resolved, self.key)
        now = section if isinstance(section, Mapping) else {}
        lost = [
            name
            for name, value in self.options.items()
            if value is not None and now.get(name) != value and (name in now or not shared)
        ]
        if not lost:
            return None
        key = ".".join(self.key)
        alone = f"{key}.{self.new}=1" if key == "metric" else f"{key}.{_name_key(self.key)}={self.new}"
        return (
            f"{key}: {self.new} takes the place of {self.old}, whose {', '.join(lost)} "
            f"{'is' if len(lost) == 1 else 'are'} dropped; {alone} would change the name alone"
        )


class Layers:
    """Sources of a config, each over those that were added before it.

    Args:
        mappings: the user's sources.
        variant: the config of a variant, below all of them. It may be a stranger's: see
            :func:`~hoptimizer.stored.guarded`.

    A section names something and gives it options: ``data``, ``program``, ``retriever``, ``optimizer``, each language
    model ``lm.ROLE`` (whose name is its ``model``), and ``metric`` (whose names are metrics, and whose options are the
    weights of counts). There is one rule for all of them:

    - In one source, the name and the options may stand in any order, and in any notation: ``program=ircot
      program.max_steps=3`` is ``program.max_steps=3 program=ircot`` and ``program={name: ircot, max_steps: 3}``; ``lm``
      alone is ``lm.default``. What is given twice has its last value.
    - Options that an earlier source gives without a name are for whatever a later source names.
    - Where a later source gives a section another name (``program=rag`` over a file's ``program: ircot``), the options
      that were set for the old name go with it, as where another option of a config group is chosen in Hydra;
      :attr:`replaced` tells them. Where it gives the same name, they stay.
    - A preset that is given over a variant takes the place of every option of it, but for those that are given too.
    - A key in a section changes that key alone. So ``program.name=rag`` keeps all options, and one that ``rag`` does
      not have is an error.

    Attributes:
        values: the merged config as plain data, every section a mapping, interpolations not yet resolved.
        replaced: names that gave way to others.

    Example:
        >>> from hoptimizer.layers import Layers
        >>> layers = Layers({"data": "atlas", "program": {"name": "ircot", "max_steps": 3}, "lm": "openai/gpt-4o"})
        >>> layers.add_words(["program.reader=cot", "program=rag", "lm.default.max_tokens=48"])
        >>> layers.values["program"], layers.values["lm"]
        ({'reader': 'cot', 'name': 'rag'}, {'default': {'model': 'openai/gpt-4o', 'max_tokens': 48}})
        >>> [(one.old, one.new, one.options) for one in layers.replaced]
        [('ircot', 'rag', {'max_steps': 3})]
    """

    def __init__(self, *mappings: Mapping[str, Any], variant: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = {}
        self.replaced: list[Replaced] = []
        # What the user gave over a variant; without one, it does not matter.
        self._given: dict[str, Any] | None = None
        if variant is not None:
            self._add([((), variant)])
            self._given = {}
        for mapping in mappings:
            self._add([((), mapping)])

    def copy(self) -> "Layers":
        """Layers over which others can be laid, while these stay as they are."""
        copied = Layers()
        copied.values, copied.replaced, copied._given = self.values, [*self.replaced], self._given
        return copied

    def add_words(self, words: Sequence[str]) -> None:
        """Lay ``key=value`` arguments over what there is, all of them as one source.

        Raises:
            UserError: one is no ``key=value``, gives a part no name, or sets a key to null beside keys in it.
        """
        for word in words:
            key, _, value = word.partition("=")
            if "=" in word and not value.strip() and _names_a_part(tuple(key.split("."))):
                # YAML reads nothing as null, which is the default.
                raise UserError(
                    f"{key}: expected a name after =, got nothing, as from a shell variable that is not set"
                )
        self._add([read_argument(word) for word in words])

    def notes(self, resolved: Mapping[str, Any], *, shared: bool = False) -> list[str]:
        """What was set and is not in the config that resulted, a line for each name that gave way to another.

        Args:
            resolved: that config as plain data.
            shared: whether options are left out that what has taken the place does not have.
        """
        return [note for one in self.replaced if (note := one.note(resolved, shared=shared))]

    def resolved(self) -> dict[str, Any]:
        """The merged config, interpolations such as ``${oc.env:NAME}`` resolved.

        Raises:
            UserError: an interpolation leads nowhere, or a variant names code that the user does not.
        """
        given = {**self.values}
        metric = given.get("metric")
        if isinstance(metric, Mapping) and [*metric.values()] == [1.0]:
            [given["metric"]] = metric
        try:
            values: Any = OmegaConf.to_container(OmegaConf.create(given), resolve=True)
        except OmegaConfBaseException as error:
            raise interpolation_error(error) from error
        for key in _sections(values):
            section, name = value_at(values, key), _name_key(key)
            # `teacher: ${lm.default}` names a model with its options.
            while isinstance(section, dict) and isinstance(section.get(name), dict):
                named = section.pop(name)
                section.update(named | section)
        if self._given is None:
            return values
        for key in _sections(self._given):
            own, section = value_at(self._given, key), value_at(values, key)
            if isinstance(own, Mapping) and own.get("preset"):
                # A variant has logged every option: what the user does not give is the preset's.
                for name in section.keys() - {*own, _name_key(key), "steps"}:
                    del section[name]
        return guarded(values, self._given)

    def _add(self, parts: Sequence[tuple[Key, Mapping[str, Any]]]) -> None:
        """Lay the parts of one source over what there is: each a key, and plain data that has nothing but that key."""
        _check_nulls(parts)
        given: dict[str, Any] = {}
        chosen: dict[Key, None] = {}
        for key, values in parts:
            expanded = _expanded(values)
            given = _merged(given, expanded)
            # A section is chosen by a value of its own, not by that of a key in it.
            chosen |= {section: None for section in _sections(expanded) if section[: len(key)] == key}
        for key in chosen:
            before, now = value_at(self.values, key), value_at(given, key)
            old, new = _name(key, before), _name(key, now)
            if old is not None and new is not None and old != new:
                options = {name: value for name, value in _options(key, before).items() if name not in now}
                self.replaced.append(Replaced(key, old, new, options))
                self.values = _without(self.values, key)
        self.values = _merged(self.values, given)
        if self._given is not None:
            self._given = _merged(self._given, given)


def interpolation_error(error: OmegaConfBaseException) -> UserError:
    """The error for an interpolation that leads nowhere.

    Args:
        error: OmegaConf's, which says the reason in its first line.
    """
    reason = str(error).partition("\n")[0].rpartition("while resolving interpolation: ")[2].strip('"')
    return UserError(f"{error.full_key or 'config'}: {reason}; set it, or give the value itself")


@cache
def _counts() -> frozenset[str]:
    """What can be weighed, but is no metric of its own."""
    from hoptimizer.eval.metrics import METRICS
    from hoptimizer.programs.settings import count_names  # brings DSPy

    return frozenset({*count_names(), *(name for name, metric in METRICS.items() if not metric.percent)})


def _names_a_part(key: Key) -> bool:
    section, *rest = key
    if section == "lm":
        return not rest or rest[-1] == "model" or (len(rest) == 1 and rest[0] not in _OF_AN_LM)
    return (section == "metric" and not rest) or (section in _NAMED and rest in ([], ["name"]))


def _check_nulls(parts: Sequence[tuple[Key, Mapping[str, Any]]]) -> None:
    nulls = [key for key, values in parts if key and value_at(values, key) is None]
    for null in nulls:
        for key, _ in parts:
            if key != null and key[: len(null)] == null:
                raise UserError(f"{'.'.join(null)}: set to null beside {'.'.join(key)}; give one of them")


def _expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with every section as a mapping."""
    expanded = {**values}
    for key in _NAMED:
        if isinstance(name := expanded.get(key), str):
            expanded[key] = {"name": name}
    if isinstance(name := expanded.get("metric"), str):
        expanded["metric"] = {name: 1.0}
    if isinstance(lm := expanded.get("lm"), str):
        expanded["lm"] = {"default": {"model": lm}}
    elif isinstance(lm, Mapping):
        # `lm: {model: …, max_tokens: …}` is the default model's.
        own = {name: value for name, value in lm.items() if name in _OF_AN_LM}
        roles = {role: {"model": one} if isinstance(one, str) else one for role, one in lm.items() if role not in own}
        if own and "default" in roles:
            raise UserError(f"lm: default stands beside {', '.join(own)}; give all of it under lm.default")
        expanded["lm"] = {"default": own, **roles} if own else roles
    return expanded


def _sections(values: Mapping[str, Any]) -> Iterator[Key]:
    for key in (*_NAMED, "metric"):
        if key in values:
            yield (key,)
    if isinstance(lm := values.get("lm"), Mapping):
        yield from (("lm", role) for role in lm)


def _name_key(key: Key) -> str:
    return "model" if key[0] == "lm" else "name"


def _name(key: Key, section: object) -> str | None:
    """What a section names; ``None`` where it has options alone."""
    if not isinstance(section, Mapping):
        return None
    if key == ("metric",):
        # Half of one objective and half of another is neither: the whole is the name.
        return ", ".join(sorted(map(str, section))) if set(section) - _counts() else None
    name = section.get(_name_key(key))
    return None if name is None else str(name)


def _options(key: Key, section: Mapping[str, Any]) -> dict[str, Any]:
    if key == ("metric",):
        return {name: weight for name, weight in section.items() if name in _counts()}
    return {name: value for name, value in section.items() if name != _name_key(key)}


def _without(values: Mapping[str, Any], key: Key) -> dict[str, Any]:
    first, *rest = key
    kept = {**values}
    if rest and isinstance(inner := kept.get(first), Mapping):
        kept[first] = _without(inner, tuple(rest))
    elif not rest:
        kept.pop(first, None)
    return kept


def _merged(earlier: Any, later: Any) -> Any:  # noqa: ANN401 - any value of a config
    """Later values over earlier ones, key by key; a name and options that meet within a section make a mapping."""
    if isinstance(earlier, str) and isinstance(later, Mapping):
        earlier = {"name": earlier}
    if isinstance(earlier, Mapping) and isinstance(later, str):
        later = {"name": later}
    if not isinstance(earlier, Mapping) or not isinstance(later, Mapping):
        return later
    both = {key: _merged(earlier[key], value) if key in earlier else value for key, value in later.items()}
    return {**earlier, **both}
