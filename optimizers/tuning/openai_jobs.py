"""Fine-tuning at OpenAI, behind DSPy's own interface, by a job that is waited for again."""

import time
from pathlib import Path
from typing import Any

from dspy.clients.openai import OpenAIProvider, TrainingJobOpenAI, openai
from dspy.clients.utils_finetune import TrainDataFormat, save_data

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.paths import write_whole
from hoptimizer.models.failures import one_line

# Times that a look at a job is tried again, in about a minute, and seconds from one look to the next.
_TRIES = 10
_EVERY = 20.0


class KeptJobProvider(OpenAIProvider):
    """OpenAI's fine-tuning as of DSPy's provider, which would start another job, and have it paid, after each look at a
    job that failed.

    Args:
        kept: the file that has the job's name while there is one. Whoever finds it there waits for that job.
    """

    def __init__(self, kept: Path) -> None:
        super().__init__()
        self.kept = kept

    def finetune(
        self,
        job: TrainingJobOpenAI,
        model: str,
        train_data: list[dict[str, Any]],
        train_data_format: TrainDataFormat | None,
        train_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """The name of the tuned model.

        Raises:
            UserError: the job failed, or was cancelled.
            ServiceError: it could not be looked at, and may go on.
        """
        if not self.kept.exists():
            write_whole(self.kept, self._start(job, model, train_data))
        job.provider_job_id = self.kept.read_text(encoding="utf-8")
        try:
            return self._tuned(model, job.provider_job_id)
        except openai.NotFoundError:
            self.kept.unlink(missing_ok=True)
            raise
        except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError) as error:
            raise ServiceError(
                f"{model}: its fine-tuning, {job.provider_job_id}, can't be looked at ({one_line(error)}); it goes on, "
                "and the same command waits for it"
            ) from error

    def _start(self, job: TrainingJobOpenAI, model: str, train_data: list[dict[str, Any]]) -> str:
        client = openai.OpenAI(max_retries=0)  # one that got no answer may have been started
        with Path(save_data(train_data)).open("rb") as data:
            job.provider_file_id = client.files.create(file=data, purpose="fine-tune").id
        name = self._remove_provider_prefix(model)
        return str(client.fine_tuning.jobs.create(model=name, training_file=job.provider_file_id).id)

    def _tuned(self, model: str, name: str) -> str:
        client = openai.OpenAI(max_retries=_TRIES)
        while (job := client.fine_tuning.jobs.retrieve(name)).status not in {"succeeded", "failed", "cancelled"}:
            time.sleep(_EVERY)
        if job.status != "succeeded":
            self.kept.unlink(missing_ok=True)
            reason = f": {job.error.message}" if job.error and job.error.message else ""
            raise UserError(f"{model}: its fine-tuning, {name}, is {job.status}{reason}; the same command starts anew")
        return str(job.fine_tuned_model)
