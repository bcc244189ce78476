"""The connection of this process to a Ray cluster."""

import contextlib
import logging
import math
import os
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.executors.settings import RayExecutor

_TIMEOUT = 5.0  # seconds
# Nothing large is kept in Ray's memory of a cluster that a command starts for itself.
_OBJECTS = 200 << 20


@contextlib.contextmanager
def connected(settings: RayExecutor) -> Iterator[ModuleType]:
    """Ray, connected to the cluster that the config names; a connection that is there already is used.

    Args:
        settings: the config's ``executor`` section.

    Raises:
        UserError: Ray is not installed, there is no cluster, or it has another version of Python or Ray, or a token.
        ServiceError: the cluster gives no answer.
    """
    # Before Ray is imported: it asks twenty times for ten seconds each by default, and reports its use to its makers.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError("executor=ray: the package ray is missing; pip install 'hoptimizer[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    _check_reachable(settings)
    options: dict[str, Any] = {"address": settings.address, "namespace": "hoptimizer", "log_to_driver": False}
    if settings.address == "local":
        # Ray lets all other work of a machine go before its workers, which here do what the command would do itself.
        os.environ.setdefault("RAY_worker_niceness", "0")
        options |= {"num_cpus": math.ceil(settings.tasks * settings.cpus), "object_store_memory": _OBJECTS}
        options |= {"include_dashboard": False}
    try:
        # What workers print is in Ray's log of them.
        ray.init(**options, logging_level=logging.ERROR, configure_logging=False)
    except ConnectionError as error:
        raise UserError(
            "executor.address: no Ray cluster runs on this machine, and RAY_ADDRESS names none; start a node of it "
            "here with `ray start`, or one for this command alone with executor.address=local"
        ) from error
    except (RuntimeError, ValueError) as error:  # other versions of Ray or Python, among them
        raise UserError(f"executor.address: {settings.address}: {' '.join(str(error).split())}") from error
    except ray.exceptions.AuthenticationError as error:
        raise UserError(
            f"executor.address: {settings.address}: {error.message}; give the cluster's token in RAY_AUTH_TOKEN, or in "
            "the file that RAY_AUTH_TOKEN_PATH names, and set RAY_AUTH_MODE=token"
        ) from error
    except SystemExit as error:  # Ray's way to say that the head gave no answer
        raise _silent(settings.address, "it does not answer as one") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(settings: RayExecutor) -> None:
    address = os.environ.get("RAY_ADDRESS", "auto") if settings.address == "auto" else settings.address
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise _silent(address, str(error)) from error


def _silent(address: str, reason: str) -> ServiceError:
    return ServiceError(
        f"executor.address: no Ray cluster can be reached at {address} ({reason}); start its head with "
        "`ray start --head`, or correct the address"
    )
