"""What a compile may spend."""

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from hoptimizer.common.errors import UserError
from hoptimizer.common.validation import Section
from hoptimizer.models.usage import Usage

_EXPECTED = "optimizer.budget: expected lm_calls, minutes or usd, e.g. optimizer.budget.lm_calls=2000"


class Budget(Section):
    """The limits of a compile; it ends at the first that is reached, with the best program so far.

    Attributes:
        lm_calls: the number of different language model calls, including those of proposals and judges.
        minutes: wall time, over all processes of a compile that was killed and resumed.
        usd: the price of the calls, in US dollars.
    """

    model_config = ConfigDict(frozen=True)

    lm_calls: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0)
    usd: float | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the config holds
        if not isinstance(value, dict | Budget):
            raise UserError(f"{_EXPECTED}; got {value!r}")
        return value

    @model_validator(mode="after")
    def _some(self) -> "Budget":
        if self.lm_calls is None and self.minutes is None and self.usd is None:
            raise UserError(_EXPECTED)
        return self

    def ends(self, spent: Usage) -> bool:
        """Whether a limit is reached, so that nothing more may be spent.

        Args:
            spent: what was spent so far.
        """
        return any(used >= limit for _, used, limit in self._limits(spent))

    def covers(self, spent: Usage) -> bool:
        """Whether an amount is within all limits.

        Args:
            spent: the amount.
        """
        return all(used <= limit for _, used, limit in self._limits(spent))

    def told(self, spent: Usage) -> str:
        """A text that names the amount spent of each thing that has a limit.

        Args:
            spent: what was spent so far.
        """
        return ", ".join(_told(what, used, ".2") for what, used, _ in self._limits(spent))

    def _limits(self, spent: Usage) -> list[tuple[str, float, float]]:
        """The name, the amount used and the limit of each thing that has a limit."""
        limits = [
            ("calls", spent.calls, self.lm_calls),
            ("minutes", spent.seconds / 60, self.minutes),
            ("usd", spent.usd, self.usd),
        ]
        return [(what, used, limit) for what, used, limit in limits if limit is not None]

    def __str__(self) -> str:
        return " or ".join(_told(what, limit) for what, _, limit in self._limits(Usage()))


def _told(what: str, amount: float, digits: str = "") -> str:
    if what == "usd":
        return f"${amount:{digits}g}"
    return f"{amount:,} calls" if what == "calls" else f"{amount:{digits}g} minutes"
