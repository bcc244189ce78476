"""What is done in other processes, where the config's executor is a cluster."""

import contextlib
from collections.abc import Sequence

from hoptimizer.common.options import Options
from hoptimizer.executors.settings import RayExecutor
from hoptimizer.retrieval.encoders.windows import Elsewhere


def encoders_of(executor: Options) -> Elsewhere | None:
    """What encodes the passages of a large corpus in other processes; ``None`` where this one is to do it.

    Args:
        executor: the config's ``executor`` section.
    """
    if not isinstance(executor, RayExecutor):
        return None
    from hoptimizer.executors.encoding import encoders_on  # brings torch

    return encoders_on(executor)


def language_models_of(
    executor: Options, names: Sequence[str], at_once: int
) -> contextlib.AbstractContextManager[None]:
    """Within it, other processes answer the calls of ``local/`` models, where this one is not to do it.

    Args:
        executor: the config's ``executor`` section.
        names: what the models are called.
        at_once: calls under way at each of them, at most.

    Raises:
        UserError: the cluster can't be had.
    """
    if not isinstance(executor, RayExecutor):
        return contextlib.nullcontext()
    from hoptimizer.executors.language_models import language_models_on  # brings the engine

    return language_models_on(executor, names, at_once)
