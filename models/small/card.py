"""What a small model is for and how it was made, kept beside its weights."""

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import is_within, write_whole
from hoptimizer.common.strict import read_json

CARD = "card.json"

Label = bool | str

TERMINATE = "terminate"
"""The label by which a labeler leaves a passage out."""

_LEAST = 1e-4


class DataSummary(BaseModel):
    """The examples that a small model learned from or was scored on.

    Attributes:
        n: number of examples.
        classes: number of examples of each label; empty for a generator.
        digest: SHA-256 over the examples in order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(ge=1)
    classes: dict[str, int] = {}
    digest: str


class RankCalibration(BaseModel):
    """How a passage's place in the search bears on whether it is kept.

    The calibrated log-odds are linear in the model's own log-odds and in the logarithm of the place.

    Attributes:
        odds: weight of the model's own log-odds.
        place: weight of the logarithm of the place, which counts from 1.
        bias: the constant term.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    odds: float
    place: float
    bias: float

    def __call__(self, probability: float, place: int) -> float:
        """The calibrated probability of a passage at a place, from 1."""
        total = self.odds * log_odds(probability) + self.place * math.log(place) + self.bias
        return 1 / (1 + math.exp(-total))


def log_odds(probability: float) -> float:
    """The log-odds of a probability, kept finite at 0 and 1."""
    return math.log((probability + _LEAST) / (1 - probability + _LEAST))


class Card(BaseModel):
    """A small model's card, ``card.json`` in its folder. It is written last: a folder without it is no small model.

    Attributes:
        step: name of the step that the model fulfils.
        inputs: the input fields of the step's signature, in the order in which the model reads them.
        output: the signature's output field.
        kind: ``classifier`` chooses one of ``labels``; ``confidence`` chooses one by how likely the language model's
            own answer is, and has no weights; ``knn`` chooses the one that similar examples have; ``generator`` writes
            a text or a list of texts; ``labeler`` chooses one of ``labels`` for a passage and copies words of it;
            ``filter`` writes by copying words.
        labels: what a model that chooses can choose, in the order of its logits; of two, the second is the positive
            one.
        token_threshold: the least probability at which a labeler or filter copies a word.
        rank: how a labeler makes use of a passage's place in the search: for passages that the question finds, and for
            those that later queries find. ``None`` where it makes no use of it.
        listed: whether a generator's output is a list of texts.
        k: how many examples vote in a ``knn``.
        base: the model that was fine-tuned, as the training named it; or the language model that answers; or the
            encoder by which examples are compared.
        threshold: the least probability at which the positive label is chosen, or with a labeler any label but
            ``terminate``; ``None`` chooses the likeliest label.
        max_tokens: the most tokens of an input; longer ones are cut.
        shared_tokens: whether a classifier is shown which tokens its two texts share.
        max_new_tokens: the most tokens that a generator writes.
        train: the examples that it learned from.
        dev: the examples that decided on the epoch and the threshold, and that gave the scores.
        config: the training's hyper-parameters; cards of version 0.1 call them ``recipe``.
        seed: the training's seed.
        scores: scores on ``dev`` by name.
        version: the version of hoptimizer that trained it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: str = Field(min_length=1)
    inputs: tuple[str, ...] = Field(min_length=1)
    output: str = Field(min_length=1)
    kind: Literal["classifier", "confidence", "knn", "generator", "labeler", "filter"]
    labels: tuple[Label, ...] = ()
    listed: bool = False
    k: int | None = Field(default=None, ge=1)
    base: str
    threshold: float | None = Field(default=None, ge=0, le=1)
    token_threshold: float = Field(default=0.5, ge=0, le=1)
    rank: tuple[RankCalibration, RankCalibration] | None = None
    max_tokens: int = Field(default=512, ge=8)
    shared_tokens: bool = False
    max_new_tokens: int | None = Field(default=None, ge=1)
    train: DataSummary
    dev: DataSummary
    config: dict[str, Any] = Field(validation_alias=AliasChoices("config", "recipe"))
    seed: int
    scores: dict[str, float]
    version: str = Field(default_factory=lambda: version("hoptimizer"))

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> "Card":
        if self.kind in ("classifier", "knn", "labeler") and len(set(self.labels)) < 2:
            raise ValueError(f"a {self.kind} has two labels or more")
        if self.kind == "labeler" and TERMINATE not in self.labels:
            raise ValueError(f"a labeler has the label {TERMINATE}")
        if self.kind == "generator" and self.max_new_tokens is None:
            raise ValueError("a generator has max_new_tokens")
        if self.kind in ("confidence", "knn") and self.threshold is None:
            raise ValueError(f"{self.kind} has a threshold")
        if self.kind == "knn" and self.k is None:
            raise ValueError("knn has k")
        if self.threshold is not None and len(self.labels) != 2 and self.kind != "labeler":
            raise ValueError("a threshold goes with two labels")
        return self


def write_card(card: Card, folder: Path) -> None:
    """Write the card into the folder of its model, in one step."""
    write_whole(folder / CARD, card.model_dump_json(indent=2) + "\n")


def read_card(folder: Path) -> Card:
    """The card of the small model in a folder.

    Raises:
        UserError: there is no card, this version can't read it, or it lies elsewhere.
    """
    file = folder / CARD
    if not is_within(folder, CARD):
        raise UserError(f"{file}: a link that leads out of {folder}; put the file itself there")
    try:
        return Card.model_validate(read_json(file.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{folder}: no {CARD} in it, so it is no small model; give a folder that a training finished in"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the card"
        raise UserError(
            f"{file}: {where}: {first['msg'].splitlines()[0]}; take the card that the training wrote, or train again"
        ) from error
    except ValueError as error:  # neither JSON nor UTF-8
        raise UserError(
            f"{file}: is not JSON ({error}); take the card that the training wrote, or train again"
        ) from error
