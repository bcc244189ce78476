"""The ``data`` section of the config."""

from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, field_validator, model_validator

from hoptimizer.common.errors import UserError
from hoptimizer.common.paths import expanded, free_folder
from hoptimizer.common.validation import Section


def bundled() -> dict[str, Path]:
    """Folders of the data sets that come with the package, by name.

    Example:
        >>> from hoptimizer.eval import bundled
        >>> list(bundled())
        ['atlas']
    """
    from hoptimizer.eval.atlas import DATA

    return {"atlas": DATA}


def free_data_folder(out: Path) -> Path:
    """The folder of a data set that is to be made, if nothing there could be lost and its name is not a bundled one's.

    Args:
        out: the folder.

    Raises:
        UserError: it is a file, or a folder with something in it; or its name would be taken for a bundled data set's.
    """
    if str(out) in bundled():
        raise UserError(f"{out}: a bundled data set is called so, and data={out} means that one; choose another name")
    return free_folder(out)


class DataSettings(Section):
    """Which data set, and how much of it. A plain string stands for a mapping with that ``name`` alone.

    Example:
        >>> from hoptimizer.eval import DataSettings
        >>> DataSettings(name="atlas", train=120, dev=60).sizes()
        {'train': 120, 'dev': 60, 'test': None}
    """

    name: str = Field(min_length=1, description="A bundled set's name, such as atlas, or the path of a folder.")
    train: PositiveInt | None = Field(
        default=None, description="Questions to take from the training split; null takes all."
    )
    dev: PositiveInt | None = Field(
        default=None, description="Questions to take from the development split; null takes all."
    )
    test: PositiveInt | None = Field(default=None, description="Questions to take from the test split; null takes all.")
    corpus: Path | None = Field(default=None, description="A corpus file to search instead of the data set's own.")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the config holds
        return {"name": str(value)} if isinstance(value, str | Path) else value

    @field_validator("name", "corpus")
    @classmethod
    def _from_anywhere(cls, value: str | Path | None) -> str | Path | None:
        """Make existing paths absolute, because a run's config may be read again from another working folder."""
        if value is None or str(value) in bundled() or not (path := expanded(value)).exists():
            return value
        return type(value)(path.resolve())

    def sizes(self) -> dict[str, int | None]:
        """How many questions to take of each split; ``None`` takes all."""
        return {"train": self.train, "dev": self.dev, "test": self.test}
