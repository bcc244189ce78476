"""The ``executor`` section of the config."""

from typing import Annotated

from pydantic import Field

from hoptimizer.common.errors import unknown
from hoptimizer.common.options import Options, Positive

IN_PROCESS = "in_process"


class InProcess(Options):
    """Everything is done in this process.

    Attributes:
        name: ``in_process``.
    """


class RayExecutor(Options):
    """Questions are answered by the workers of a Ray cluster, each a process with a program of its own; in a compile,
    workers answer the calls of ``local/`` language models.

    Attributes:
        name: ``ray``.
        address: ``auto`` for the cluster that this machine is a node of, or that ``RAY_ADDRESS`` names; ``local`` for
            one that is started on this machine and ends with the command; else the head's ``HOST:PORT``.
        tasks: workers at once. The questions under way (``workers``) are shared out among them.
        cpus: cores that Ray reserves for each of them.
        gpus: GPUs that it reserves; a part of one where several workers share it.
        start_timeout: seconds after which the work ends if not one worker could be started.
    """

    address: Annotated[str, Field(pattern=r"^(auto|local|[^\s/:]+:\d+)$")] = "auto"
    tasks: Positive = 4
    cpus: Annotated[float, Field(ge=0)] = 1.0
    gpus: Annotated[float, Field(ge=0)] = 0.0
    start_timeout: Annotated[float, Field(gt=0)] = 300.0


EXECUTORS: dict[str, type[Options]] = {IN_PROCESS: InProcess, "ray": RayExecutor}


def settings_model(name: str) -> type[Options]:
    """The options of an executor as a pydantic model.

    Args:
        name: the executor's name in a config.

    Raises:
        UserError: there is none of that name.
    """
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    return EXECUTORS[name]
