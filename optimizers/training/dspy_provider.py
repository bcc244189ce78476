"""Fine-tuning in this process, behind DSPy's own interface."""

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

# Where no dev conversations are given, each conversation with an index divisible by this number is held out.
_HELD_OUT = 10


class LocalTrainingJob(TrainingJob):
    """A fine-tuning that runs in a thread of this process."""

    def status(self) -> TrainingStatus:
        """The state of the training: running, succeeded, failed or cancelled."""
        if self.cancelled():
            return TrainingStatus.cancelled
        if not self.done():
            return TrainingStatus.running
        return TrainingStatus.failed if isinstance(self.result(), Exception) else TrainingStatus.succeeded

    def cancel(self) -> bool:
        """Stop the training after the present update, and wait for the end of that.

        The last checkpoint is kept, from which the same training can be resumed.

        Returns:
            whether the training was stopped; false where it had already ended.
        """
        super().cancel()
        if self.cancelled():
            self.thread.join()
        return self.cancelled()

    def set_result(self, result: Any) -> None:  # noqa: ANN401 - DSPy's: an LM or an exception
        """Set the result of the training, unless the training was cancelled.

        Args:
            result: the trained language model, or the exception that ended the training.
        """
        with suppress(InvalidStateError):
            super().set_result(result)


class LocalProvider(Provider):
    """Trains the models that run in this process (``local/NAME``).

    When it is an LM's ``provider``, ``lm.finetune`` and DSPy's ``BootstrapFinetune`` work with that LM.

    Args:
        templated: whether the model's chat template is applied to messages; it must be as when the LM is called.
    """

    def __init__(self, templated: bool = True) -> None:
        super().__init__()
        self.finetunable = True
        self.TrainingJob = LocalTrainingJob
        self._templated = templated

    @staticmethod
    def is_provider_model(model: str) -> bool:
        """Whether a model runs in this process.

        Args:
            model: the model's name.
        """
        return model.startswith(LOCAL)

    def kill(self, lm: dspy.LM, launch_kwargs: dict[str, Any] | None = None) -> None:
        """Remove the LM's model from memory; the LM's next call loads it again.

        Args:
            lm: the LM.
            launch_kwargs: unused; a part of DSPy's interface.
        """
        release(lm.model)

    def finetune(
        self,
        job: TrainingJob,
        model: str,
        train_data: list[dict[str, Any]],
        train_data_format: TrainDataFormat | str | None,
        train_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Fine-tune a model on the last message of each conversation.

        A training that was killed is resumed from its last checkpoint; one that finished is not repeated.

        Args:
            job: DSPy's training job, which is asked after every update whether it was cancelled.
            model: the model's name, ``local/NAME``.
            train_data: the conversations, each as ``{"messages": […]}``.
            train_data_format: the format of the data, which must be ``chat``.
            train_kwargs: the options of :class:`~hoptimizer.optimizers.training.conversations.LMTrainingConfig`, and:
                ``folder``, in which the model gets a folder of its own (by default ``trained`` under hoptimizer's
                home); ``dev``, the conversations that the epoch is chosen on (by default a tenth of the train data,
                which is then not trained on); ``report``, which is told of the progress after every update.

        Returns:
            the trained model's name, ``local/FOLDER``. The folder's name holds a digest of the data and the config,
            since DSPy's cache identifies a model by its name alone.

        Raises:
            UserError: the format is another one, an option is unknown, there are too few conversations, or the model
                can't be trained.
        """
        # Imported here, since these modules import torch and peft.
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

        with suppress(CancelledError):  # the job's status says that it was cancelled
            train_lm(train, dev, config, folder, check_and_report)
        return f"{LOCAL}{folder}"


def _split(
    conversations: list["Conversation"], dev: list["Conversation"] | None
) -> tuple[list["Conversation"], list["Conversation"]]:
    """The conversations to learn from, and those that the epoch is chosen on."""
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
