"""DSPy's bootstrap loops: in which order each optimizer asks its teacher the train questions, and for how long."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import dspy


@dataclass(frozen=True)
class BootstrapLoop:
    """One run of ``dspy.BootstrapFewShot``, by itself or within another optimizer.

    ``dspy.BootstrapFewShotWithOptuna`` makes one, with its ``max_demos`` for ``bootstrapped``, and so does
    ``dspy.InferRules``, over the whole train set where it is given a ``valset`` too.

    Attributes:
        trainset: in the order in which the loop goes through it.
        bootstrapped: runs that must have scored well for the loop to end (``max_bootstrapped_demos``), at least 1.
        labeled: labeled demonstrations of the teacher (``max_labeled_demos``); with 0 it keeps those it has.
    """

    trainset: Sequence[dspy.Example]
    bootstrapped: int
    labeled: int

    def shuffled(self, rng: random.Random) -> "BootstrapLoop":
        """The loop with its questions in random order."""
        order = list(self.trainset)
        rng.shuffle(order)
        return replace(self, trainset=order)

    def shortened(self, rng: random.Random) -> "BootstrapLoop":
        """The loop up to a random number of runs that scored well."""
        return replace(self, bootstrapped=rng.randint(1, self.bootstrapped))


def random_search_loops(first: BootstrapLoop, candidates: int) -> list[BootstrapLoop]:
    """The loops of ``dspy.BootstrapFewShotWithRandomSearch`` (``teleprompt/random_search.py``).

    Args:
        first: over the train set as the optimizer is given it.
        candidates: its ``num_candidate_programs``.
    """
    # DSPy draws order and size by two generators of the same seed.
    seeds = range(candidates)
    return [first, *(first.shuffled(random.Random(seed)).shortened(random.Random(seed)) for seed in seeds)]


def mipro_loops(first: BootstrapLoop, candidates: int, seed: int) -> list[BootstrapLoop]:
    """The loops of ``dspy.MIPROv2`` (``create_n_fewshot_demo_sets`` in ``teleprompt/utils.py``).

    It must be given a ``valset``, ``auto=None`` and its seed by its constructor: else it splits and draws before.

    Args:
        first: over the train set as the optimizer is given it.
        candidates: its ``num_candidates``.
        seed: its own.
    """
    rng = random.Random(seed)
    loops = []
    for number in range(-3, candidates - 3):
        if number == -1:
            loops.append(first)
        # -3 is the program without demonstrations, -2 the one with labeled ones, where there are any.
        elif number >= 0 or (number == -2 and not first.labeled):
            loops.append(first.shuffled(rng).shortened(rng))
    return loops
