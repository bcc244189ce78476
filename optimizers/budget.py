"""What a compile may spend."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hoptimizer.models.calls import Spent
from hoptimizer.models.errors import UserError


class Budget(BaseModel):
    """Where a compile ends, with the best program so far; whichever comes first.

    Attributes:
        lm_calls: different language model calls, those of proposals and judges included.
        minutes: wall time, over all processes of a compile that was killed and taken up again.
        usd: the price of the calls.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lm_calls: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0)
    usd: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _some(self) -> "Budget":
        if self.lm_calls is None and self.minutes is None and self.usd is None:
            raise UserError("optimizer.budget: expected lm_calls, minutes or usd, e.g. optimizer.budget.lm_calls=2000")
        return self

    def ends(self, spent: Spent) -> bool:
        """Whether nothing more may be spent."""
        return (
            (self.lm_calls is not None and spent.calls >= self.lm_calls)
            or (self.minutes is not None and spent.seconds >= 60 * self.minutes)
            or (self.usd is not None and spent.usd >= self.usd)
        )

    def covers(self, spent: Spent) -> bool:
        """Whether so much may be spent."""
        return not (
            (self.lm_calls is not None and spent.calls > self.lm_calls)
            or (self.minutes is not None and spent.seconds > 60 * self.minutes)
            or (self.usd is not None and spent.usd > self.usd)
        )

    def __str__(self) -> str:
        parts = [
            f"{self.lm_calls:,} calls" if self.lm_calls is not None else "",
            f"{self.minutes:g} minutes" if self.minutes is not None else "",
            f"${self.usd:g}" if self.usd is not None else "",
        ]
        return " or ".join(part for part in parts if part)
