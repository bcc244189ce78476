"""Chooses the data set's questions among all possible ones, and their splits.

No entity starts two chain questions, and no pair is asked about twice, so that no chain of a test question is seen
in training. Choices follow :func:`hoptimizer.eval.atlas.facts.rank`, not a random generator whose numbers may change
with the Python version.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from hoptimizer.eval.atlas.chains import Chain, chains, circular, gives_itself_away, signature
from hoptimizer.eval.atlas.facts import Facts, rank
from hoptimizer.eval.atlas.pairs import Pair, about, comparisons, yes_or_no
from hoptimizer.eval.atlas.questions import QuestionRow, Wording, along

# How many questions of each type each split has.
QUOTAS: dict[str, dict[str, int]] = {
    "train": {"single": 40, "bridge2": 60, "bridge3": 34, "bridge4": 12, "comparison": 30, "yesno": 24},
    "dev": {"single": 12, "bridge2": 18, "bridge3": 10, "bridge4": 4, "comparison": 9, "yesno": 7},
    "test": {"single": 12, "bridge2": 18, "bridge3": 10, "bridge4": 4, "comparison": 9, "yesno": 7},
}

# Guessing the most frequent answer must not pay: it is the answer of at most so many chain questions.
MOST_SAME_ANSWERS = 4
# How many pairs one entity may be in, so that pairs are not always about the same few entities.
MOST_PAIRS_OF_ONE = 2

Candidate = TypeVar("Candidate")


def splits(facts: Facts) -> dict[str, list[QuestionRow]]:
    """The rows of each split with their ids, in an order that mixes the types."""
    wording = Wording(facts)
    by_type = {**_chain_questions(facts, wording), **_pair_questions(facts, wording)}
    made = {}
    for split, quotas in QUOTAS.items():
        rows = [by_type[type].pop() for type, quota in quotas.items() for _ in range(quota)]
        rows.sort(key=lambda row: rank("order", row["question"]))
        made[split] = [{"id": f"{split}-{number:03}", **row} for number, row in enumerate(rows, 1)]
    return made


def _quota(type: str) -> int:
    return sum(quotas[type] for quotas in QUOTAS.values())


def _chain_questions(facts: Facts, wording: Wording) -> dict[str, list[QuestionRow]]:
    """Questions along chains, by type; long chains choose first, because they are the rarest."""
    pool: dict[int, list[Chain]] = defaultdict(list)
    for chain in chains(facts, set(wording.relations)):
        if not circular(chain) and not gives_itself_away(chain):
            pool[len(chain)].append(chain)
    starts: set[str] = set()
    answers: Counter[str] = Counter()

    def accept(chain: Chain) -> bool:
        if chain[0].entity.id in starts or answers[chain[-1].value] >= MOST_SAME_ANSWERS:
            return False
        starts.add(chain[0].entity.id)
        answers[chain[-1].value] += 1
        return True

    made = {}
    for length in sorted(pool, reverse=True):
        type = "single" if length == 1 else f"bridge{length}"
        taken = _in_turn(pool[length], signature, _chain_key, accept, _quota(type))
        made[type] = [along(wording, chain) for chain in taken]
    return made


def _chain_key(chain: Chain) -> str:
    return "/".join([*(step.entity.id for step in chain), chain[-1].column])


def _pair_questions(facts: Facts, wording: Wording) -> dict[str, list[QuestionRow]]:
    """Questions about pairs, by type; those with yes and with no take turns, so that each split gets both."""
    asked: set[frozenset[str]] = set()
    compared = _pairs(comparisons(facts), _quota("comparison"), asked)
    pairs, half = list(yes_or_no(facts)), _quota("yesno") // 2
    yes = _pairs((pair for pair in pairs if pair.answer == "yes"), half, asked)
    no = _pairs((pair for pair in pairs if pair.answer == "no"), half, asked)
    return {
        "comparison": [about(wording, pair, "comparison") for pair in compared],
        "yesno": [about(wording, pair, "yesno") for both in zip(yes, no, strict=True) for pair in both],
    }


def _pairs(pairs: Iterable[Pair], count: int, asked: set[frozenset[str]]) -> list[Pair]:
    """``count`` pairs that were not asked about before; they are added to ``asked``."""
    used: Counter[str] = Counter()

    def accept(pair: Pair) -> bool:
        ids = frozenset((pair.first[0].entity.id, pair.second[0].entity.id))
        if ids in asked or any(used[id] >= MOST_PAIRS_OF_ONE for id in ids):
            return False
        asked.add(ids)
        used.update(ids)
        return True

    return _in_turn(pairs, lambda pair: pair.group, _pair_key, accept, count)


def _pair_key(pair: Pair) -> str:
    return "/".join([pair.group, pair.first[0].entity.id, pair.second[0].entity.id])


def _in_turn(
    candidates: Iterable[Candidate],
    group: Callable[[Candidate], str],
    key: Callable[[Candidate], str],
    accept: Callable[[Candidate], bool],
    count: int,
) -> list[Candidate]:
    """``count`` acceptable candidates, taken from each group in turn, then shuffled.

    Raises:
        ValueError: there are too few.
    """
    queues: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        queues[group(candidate)].append(candidate)
    for queue in queues.values():
        queue.sort(key=lambda candidate: rank("queue", key(candidate)))
    taken: list[Candidate] = []
    while len(taken) < count and queues:
        for name in sorted(queues, key=lambda name: rank("turn", name)):
            while len(taken) < count and queues[name]:
                candidate = queues[name].pop()
                if accept(candidate):
                    taken.append(candidate)
                    break
            if not queues[name]:
                del queues[name]
    if len(taken) < count:
        raise ValueError(f"only {len(taken)} of {count} questions could be made; add facts")
    return sorted(taken, key=lambda candidate: rank("shuffle", key(candidate)))
