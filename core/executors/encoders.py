"""Where the passages of a corpus are encoded."""

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
