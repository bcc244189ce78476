"""The bootstrap loops of DSPy's optimizers: the order in which the teacher runs on train questions, and the end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import dspy


@dataclass(frozen=True)
class BootstrapLoop:
    """One run of ``dspy.BootstrapFewShot``, by itself or within another optimizer.

    ``dspy.BootstrapFewShotWithOptuna`` makes one, in which ``bootstrapped`` is its ``max_demos``. So does
    ``dspy.InferRules``, over the whole train set if it is given a ``valset``.

    Attributes:
        trainset: the train questions, in the order in which the loop goes through them.
        bootstrapped: the number of runs that score well after which the loop ends (``max_bootstrapped_demos``), at
            least 1.
        labeled: the number of the teacher's labeled demonstrations (``max_labeled_demos``); with 0 the teacher keeps
            those that it has.
    """

    trainset: Sequence[dspy.Example]
    bootstrapped: int
    labeled: int

    def shuffled(self, rng: random.Random) -> "BootstrapLoop":
        """The loop with its questions in random order.

        Args:
            rng: determines the order.
        """
        order = list(self.trainset)
        rng.shuffle(order)
        return replace(self, trainset=order)

    def shortened(self, rng: random.Random) -> "BootstrapLoop":
        """The loop, ended after a random number of runs that scored well.

        Args:
            rng: determines the number.
        """
        return replace(self, bootstrapped=rng.randint(1, self.bootstrapped))


def random_search_loops(first: BootstrapLoop, candidates: int) -> list[BootstrapLoop]:
    """The loops of ``dspy.BootstrapFewShotWithRandomSearch`` (``teleprompt/random_search.py``).

    Args:
        first: the loop over the train set in the order in which the optimizer is given it.
        candidates: the optimizer's ``num_candidate_programs``.
    """
    # DSPy draws the order and the size with two generators of the same seed.
    seeds = range(candidates)
    return [first, *(first.shuffled(random.Random(seed)).shortened(random.Random(seed)) for seed in seeds)]


def mipro_loops(first: BootstrapLoop, candidates: int, seed: int) -> list[BootstrapLoop]:
    """The loops of ``dspy.MIPROv2`` (``create_n_fewshot_demo_sets`` in ``teleprompt/utils.py``).

    The optimizer must be given a ``valset``, and ``auto=None`` and the seed in its constructor: otherwise it splits the
    train set and draws from its generator before the first loop.

    Args:
        first: the loop over the train set in the order in which the optimizer is given it.
        candidates: the optimizer's ``num_candidates``.
        seed: the optimizer's seed.
    """
    rng = random.Random(seed)
    loops = []
    for number in range(-3, candidates - 3):
        if number == -1:
            loops.append(first)
        # -3 is the program without demonstrations, -2 the program with labeled ones, where there are any.
        elif number >= 0 or (number == -2 and not first.labeled):
            loops.append(first.shuffled(rng).shortened(rng))
    return loops
