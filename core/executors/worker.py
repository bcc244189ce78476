"""What runs in a worker's process: a program of its own, which is asked many questions at once."""

import asyncio
import contextlib
import contextvars
import socket
from typing import Any

from hoptimizer.common.disk import disk_failure
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.progress import silent
from hoptimizer.compiled import restore
from hoptimizer.config import make_config
from hoptimizer.eval.datasets.dataset import DataSet
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import QuestionResult, ask
from hoptimizer.executors.answers import AskedStore
from hoptimizer.executors.task import Refusal, Task
from hoptimizer.models.disk_cache import keep_elsewhere
from hoptimizer.models.slots import divide_limits
from hoptimizer.workbench import Workbench


class OnNode:
    """What runs in a worker's process, which can tell its machine.

    It is an actor of Ray's, which calls its methods in one event loop. It knows nothing of Ray itself.
    """

    async def host(self) -> str:
        """The name of the machine."""
        return socket.gethostname()


class AsksModels(OnNode):
    """What asks language models on its machine.

    Args:
        answers: what keeps their answers, as an actor's handle; ``None`` where this machine does.
    """

    def __init__(self, answers: Any = None) -> None:  # noqa: ANN401 - a handle of Ray's, which has no type
        if answers is not None:
            keep_elsewhere(AskedStore(answers))


class Worker(AsksModels):
    """Answers questions with a program that is made here, from this machine's data, weights and indexes.

    Args:
        answers: what keeps the answers of language models, as an actor's handle; ``None`` where this machine does.
    """

    def __init__(self, answers: Any = None) -> None:  # noqa: ANN401 - a handle of Ray's, which has no type
        super().__init__(answers)
        self._context = contextvars.copy_context()
        self._active = contextlib.ExitStack()

    async def start(self, values: dict[str, Any], task: Task) -> Refusal | None:
        """Make the program, in the place of the one before.

        Args:
            values: the config as plain data, its keys included.
            task: what to make it from.

        Returns:
            why it can't be made, or ``None``.
        """
        try:
            if told := task.node.lacking():
                return Refusal(told)
            self.close()
            self._context.run(self._make, values, task)
        except Exception as error:
            if refusal := refusal_of(error):
                return refusal
            raise
        return None

    def _make(self, values: dict[str, Any], task: Task) -> None:
        divide_limits(task.sharing)
        self._bench = bench = Workbench(make_config(values), silent)
        check_data(bench.data, task.data)
        self._active.enter_context(bench.active(judged=True))
        self._program = bench.program() if task.state is None else restore(bench, task.state, task.variant)
        self._objective = bench.config.objective

    def close(self) -> None:
        """Leave the settings of the program, which were entered in a context of their own."""
        self._context.run(self._active.close)
        self._context, self._active = contextvars.copy_context(), contextlib.ExitStack()

    async def answer(self, question: Question) -> QuestionResult | Refusal:
        """Ask a question, and score what comes out.

        Args:
            question: as of the data set.
        """
        asked = ask(self._program, question, self._objective, self._bench.lms.get("judge"))
        try:
            # DSPy's settings are those of the context in which the program was made.
            return await asyncio.create_task(asked, context=self._context.copy())
        except Exception as error:
            if refusal := refusal_of(error):
                return refusal
            raise


def check_data(data: DataSet, digest: str) -> None:
    """Make sure that a data set is the driver's.

    Args:
        data: this machine's.
        digest: the driver's.

    Raises:
        UserError: it is another one.
    """
    if data.digest != digest:
        raise UserError(f"data: {data.folder} holds other data than the driver's; copy it to all nodes")


def refusal_of(error: Exception) -> Refusal | None:
    """What a worker answers in the place of an error that its user can mend; ``None`` for any other one.

    Args:
        error: the one that is being handled.
    """
    if isinstance(error, UserError):
        return Refusal(str(error), isinstance(error, ServiceError))
    if line := disk_failure(error):
        return Refusal(f"{line}; mend that, and give the same command again", is_outage=True)
    return None
