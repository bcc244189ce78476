"""Fine-tuning behind DSPy's own interface, in this process."""

from concurrent.futures import CancelledError, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy
from dspy.clients.provider import Provider, TrainingJob
from dspy.clients.utils_finetune import TrainDataFormat, TrainingStatus
from pydantic import ValidationError

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.paths import home
from hoptimizer.models.engine.engine import release
from hoptimizer.models.settings import LOCAL

if TYPE_CHECKING:
    from hoptimizer.optimizers.training.conversations import Conversation, LMTrainingConfig
    from hoptimizer.optimizers.training.loop import TrainingProgress

# Of conversations that come without others to be judged by, every so many judges.
_HELD_OUT = 10


class LocalTrainingJob(TrainingJob):
    """A fine-tuning in a thread of this process."""

    def status(self) -> TrainingStatus:
        """How far it is."""
        if self.cancelled():
            return TrainingStatus.cancelled
        if not self.done():
            return TrainingStatus.running
        return TrainingStatus.failed if isinstance(self.result(), Exception) else TrainingStatus.succeeded

    def cancel(self) -> bool:
        """Stop after the update that is under way, and wait for that; whether there was something to stop.

        What was trained up to the last checkpoint is kept: the same training goes on there.
        """
        super().cancel()
        if self.cancelled():
            self.thread.join()
        return self.cancelled()

    def set_result(self, result: Any) -> None:  # noqa: ANN401 - DSPy's: an LM or an exception
        """What came of it, unless it was cancelled."""
        with suppress(InvalidStateError):
            super().set_result(result)


class LocalProvider(Provider):
    """Trains the models that run in this process (``local/NAME``).

    Set as an LM's ``provider``, it makes ``lm.finetune`` and DSPy's ``BootstrapFinetune`` work with that LM.

    Args:
        templated: whether messages go through the model's chat template, as they will when the LM asks it.
    """

    def __init__(self, templated: bool = True) -> None:
        super().__init__()
        self.finetunable = True
        self.TrainingJob = LocalTrainingJob
        self._templated = templated

    @staticmethod
    def is_provider_model(model: str) -> bool:
        """Whether a model runs in this process."""
        return model.startswith(LOCAL)

    def kill(self, lm: dspy.LM, launch_kwargs: dict[str, Any] | None = None) -> None:
        """Take the LM's model out of memory; its next call loads it again."""
        release(lm.model)

    def finetune(
        self,
        job: TrainingJob,
        model: str,
        train_data: list[dict[str, Any]],
        train_data_format: TrainDataFormat | str | None,
        train_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Fine-tune a model on conversations, each on its last message.

        The same training goes on from its last checkpoint where it was killed, and is not repeated where it finished.

        Args:
            job: is asked after every update whether it was cancelled.
            model: ``local/NAME``.
            train_data: ``{"messages": […]}`` each.
            train_data_format: ``chat``.
            train_kwargs: ``folder``, in which the model gets one of its own (by default ``trained`` under
                hoptimizer's home); ``dev``, conversations that choose the best epoch (by default a tenth of the train
                data, which is then not trained on); ``report``, told after every update; and the options of
                :class:`~hoptimizer.optimizers.training.conversations.LMTrainingConfig`.

        Returns:
            ``local/FOLDER``. The folder's name holds a digest of the data and the config, since DSPy's cache knows a
            model by its name alone.

        Raises:
            UserError: another format, an unknown option, too few conversations, or a model that can't be trained.
        """
        # Imported here: they bring torch and peft.
        from hoptimizer.optimizers.training.conversations import train_lm
        from hoptimizer.optimizers.training.loop import training_key

        if train_data_format != TrainDataFormat.CHAT:
            raise UserError(
                f"fine-tuning {model}: train_data_format is {train_data_format!r}; give conversations (chat)"
            )
        options: dict[str, Any] = {"templated": self._templated, **(train_kwargs or {})}
        parent = Path(options.pop("folder", home() / "trained"))
        report = options.pop("report", lambda _: None)
        train, dev = _split(train_data, options.pop("dev", None))
        config = _config(model.removeprefix(LOCAL), options)
        digest = training_key(config.model_dump(), train, dev)[:16]
        folder = parent.absolute() / f"{Path(config.base).name}-{digest}"

        def check_and_report(progress: "TrainingProgress") -> None:
            if job.cancelled():
                raise CancelledError
            report(progress)

        with suppress(CancelledError):  # who cancelled knows
            train_lm(train, dev, config, folder, check_and_report)
        return f"{LOCAL}{folder}"


def _split(
    conversations: list["Conversation"], dev: list["Conversation"] | None
) -> tuple[list["Conversation"], list["Conversation"]]:
    """What to learn from, and what to be judged by."""
    if dev is not None:
        return conversations, dev
    train = [one for place, one in enumerate(conversations) if place % _HELD_OUT]
    return train, conversations[::_HELD_OUT]


def _config(base: str, options: dict[str, Any]) -> "LMTrainingConfig":
    from hoptimizer.optimizers.training.conversations import LMTrainingConfig

    known = LMTrainingConfig.model_fields.keys() - {"base"}
    if unknown := sorted(options.keys() - known):
        hint = nearest(unknown[0], known | {"folder", "dev", "report"})
        raise UserError(f"train_kwargs: unknown option {unknown[0]!r}; {hint}")
    try:
        return LMTrainingConfig(base=base, **options)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"train_kwargs: {first['loc'][0]}={first['input']!r}: {first['msg']}") from error
