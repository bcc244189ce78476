"""DSPy's bootstrap loops: in which order each optimizer asks its teacher the train questions, and for how long."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import dspy
from dspy.teleprompt.mipro_optimizer_v2 import BOOTSTRAPPED_FEWSHOT_EXAMPLES_IN_CONTEXT


@dataclass(frozen=True)
class Loop:
    """One run of ``dspy.BootstrapFewShot``, by itself or within another optimizer.

    ``dspy.BootstrapFewShotWithOptuna`` makes one, with ``max_demos`` for ``bootstrapped``, and so does
    ``dspy.InferRules``, over the train set if it is given a ``valset`` too.

    Attributes:
        trainset: in the order in which the loop goes through it.
        bootstrapped: runs that must have scored well for the loop to end (``max_bootstrapped_demos``).
        labeled: labeled demonstrations of the teacher (``max_labeled_demos``); with 0 it keeps those it has.
    """

    trainset: Sequence[dspy.Example]
    bootstrapped: int
    labeled: int


def random_search_loops(
    trainset: Sequence[dspy.Example], bootstrapped: int, labeled: int, candidates: int
) -> list[Loop]:
    """The loops of ``dspy.BootstrapFewShotWithRandomSearch`` (``teleprompt/random_search.py``).

    Args:
        trainset: as the optimizer is given it.
        bootstrapped: its ``max_bootstrapped_demos``.
        labeled: its ``max_labeled_demos``.
        candidates: its ``num_candidate_programs``.
    """
    loops = [Loop(trainset, bootstrapped, labeled)]
    for seed in range(candidates):
        size = random.Random(seed).randint(1, bootstrapped)
        loops.append(Loop(_shuffled(trainset, random.Random(seed)), size, labeled))
    return loops


def mipro_loops(
    trainset: Sequence[dspy.Example], bootstrapped: int, labeled: int, candidates: int, seed: int
) -> list[Loop]:
    """The loops of ``dspy.MIPROv2`` with ``auto=None`` and a ``valset`` (``create_n_fewshot_demo_sets`` in
    ``teleprompt/utils.py``). With ``auto`` or without a ``valset`` it splits and draws before, and asks otherwise.

    Args:
        trainset: as the optimizer is given it.
        bootstrapped: its ``max_bootstrapped_demos``; 0, with ``labeled`` 0, for instructions alone: what DSPy
            bootstraps then is shown to the model that writes them.
        labeled: its ``max_labeled_demos``.
        candidates: its ``num_candidates``.
        seed: its own, not 0: DSPy takes that for none.
    """
    wanted = bootstrapped or BOOTSTRAPPED_FEWSHOT_EXAMPLES_IN_CONTEXT
    rng = random.Random(seed)
    loops = []
    for number in range(-3, candidates - 3):
        if number == -1:
            loops.append(Loop(trainset, wanted, labeled))
        # -3 is the program without demonstrations, -2 the one with labeled ones, where there are any.
        elif number >= 0 or (number == -2 and not labeled):
            order = _shuffled(trainset, rng)
            loops.append(Loop(order, rng.randint(1, wanted), labeled))
    return loops


def _shuffled(trainset: Sequence[dspy.Example], rng: random.Random) -> list[dspy.Example]:
    order = list(trainset)
    rng.shuffle(order)
    return order
