"""Chooses the data set's questions among all possible ones, and their splits.

No entity starts two chain questions, no chain is part of another one, and no pair is asked about twice, so that no
chain of a test question is seen in training. Choices follow :func:`hoptimizer.eval.atlas.facts.rank`, not a random
generator whose numbers may change with the Python version.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from hoptimizer.eval.atlas.balance import Drawn, deal, spread
from hoptimizer.eval.atlas.chains import Chain, chains, circular, gives_itself_away, parts, signature
from hoptimizer.eval.atlas.facts import Entity, Facts, bare_name, rank
from hoptimizer.eval.atlas.mentions import Mentions
from hoptimizer.eval.atlas.pairs import Pair, about, comparisons, told_apart, yes_or_no
from hoptimizer.eval.atlas.questions import QuestionRow, Wording, along

# How many questions of each type each split has.
QUOTAS: dict[str, dict[str, int]] = {
    "train": {"single": 40, "bridge2": 60, "bridge3": 34, "bridge4": 12, "comparison": 30, "yesno": 24},
    "dev": {"single": 12, "bridge2": 18, "bridge3": 10, "bridge4": 4, "comparison": 9, "yesno": 7},
    "test": {"single": 40, "bridge2": 60, "bridge3": 34, "bridge4": 12, "comparison": 30, "yesno": 24},
}

# Guessing the most frequent answer must not pay: it is the answer of at most so many chain questions.
MOST_SAME_ANSWERS = 6
# How many pairs one entity may be in, so that pairs are not always about the same few entities.
MOST_PAIRS_OF_ONE = 2

Candidate = TypeVar("Candidate")


def splits(facts: Facts) -> dict[str, list[QuestionRow]]:
    """The rows of each split with their ids; every beginning of a split mixes types and relations as all of it does.

    Raises:
        ValueError: there are too few facts for the number of questions.
    """
    return {
        split: [{"id": f"{split}-{number:03}", **drawn.row} for number, drawn in enumerate(ordered, 1)]
        for split, ordered in draw(facts).items()
    }


def draw(facts: Facts) -> dict[str, list[Drawn]]:
    """The questions of each split in their order."""
    wording, mentions = Wording(facts), Mentions(facts)
    drawn = [*_chain_questions(facts, wording, mentions), *_pair_questions(facts, wording, mentions)]
    return {split: spread(dealt) for split, dealt in deal(drawn, QUOTAS).items()}


def named_once(facts: Facts) -> Callable[[Entity], bool]:
    """Tells whether what questions call an entity can mean no other one here.

    A name before a comma counts as a whole: there are two places called Cambridge.
    """
    count = Counter(_called(entity) for entity in facts.entities)
    return lambda entity: count[_called(entity)] == 1


def _called(entity: Entity) -> str:
    return bare_name(entity.labelled).split(",")[0].lower()


def _quota(type: str) -> int:
    return sum(quotas[type] for quotas in QUOTAS.values())


def _chain_questions(facts: Facts, wording: Wording, mentions: Mentions) -> list[Drawn]:
    """Questions along chains; long chains choose first, because they are the rarest."""
    unique = named_once(facts)
    pool: dict[int, list[Chain]] = defaultdict(list)
    for chain in chains(facts, set(wording.relations)):
        if unique(chain[0].entity) and not circular(chain) and not gives_itself_away(chain):
            pool[len(chain)].append(chain)
    starts: set[str] = set()
    asked: set[Chain] = set()
    answers: Counter[str] = Counter()

    def accept(chain: Chain) -> bool:
        if chain[0].entity.id in starts or chain in asked or answers[chain[-1].value] >= MOST_SAME_ANSWERS:
            return False
        if mentions.short_cut(chain):
            return False
        starts.add(chain[0].entity.id)
        asked.update(parts(chain))
        answers[chain[-1].value] += 1
        return True

    made: list[Chain] = []
    for length in sorted(pool, reverse=True):
        type = "single" if length == 1 else f"bridge{length}"
        made += _in_turn(pool[length], _last_then_signature, _chain_key, accept, _quota(type))
    return [Drawn(along(wording, chain), chain[-1].column) for chain in made]


def _last_then_signature(chain: Chain) -> tuple[str, str]:
    return chain[-1].column, signature(chain)


def _chain_key(chain: Chain) -> str:
    return "/".join([*(step.entity.id for step in chain), chain[-1].column])


def _pair_questions(facts: Facts, wording: Wording, mentions: Mentions) -> list[Drawn]:
    """Questions about pairs; as many with yes as with no."""
    unique = named_once(facts)
    asked: set[frozenset[str]] = set()

    def choose(pairs: Iterable[Pair], count: int) -> list[Pair]:
        used: Counter[str] = Counter()

        def accept(pair: Pair) -> bool:
            both = [pair.first[0].entity, pair.second[0].entity]
            ids = frozenset(entity.id for entity in both)
            if ids in asked or any(used[id] >= MOST_PAIRS_OF_ONE for id in ids) or not all(map(unique, both)):
                return False
            if not told_apart(facts, pair) or mentions.together(*(entity.name for entity in both)):
                return False
            asked.add(ids)
            used.update(ids)
            return True

        return _in_turn(pairs, lambda pair: (pair.first[-1].column, pair.group), _pair_key, accept, count)

    chosen = {"comparison": choose(comparisons(facts), _quota("comparison"))}
    pairs, half = list(yes_or_no(facts)), _quota("yesno") // 2
    chosen["yesno"] = [
        *choose((pair for pair in pairs if pair.answer == "yes"), half),
        *choose((pair for pair in pairs if pair.answer == "no"), _quota("yesno") - half),
    ]
    return [
        Drawn(about(wording, pair, type), pair.first[-1].column, pair.side)
        for type, taken in chosen.items()
        for pair in taken
    ]


def _pair_key(pair: Pair) -> str:
    return "/".join([pair.group, pair.first[0].entity.id, pair.second[0].entity.id])


def _in_turn(
    candidates: Iterable[Candidate],
    group: Callable[[Candidate], tuple[str, str]],
    key: Callable[[Candidate], str],
    accept: Callable[[Candidate], bool],
    count: int,
) -> list[Candidate]:
    """``count`` acceptable candidates: relations take turns, and within a relation its groups do.

    Args:
        candidates: what there is to choose from.
        group: the relation that a candidate ends in, and its group.
        key: what tells it from every other candidate.
        accept: whether it can be taken after those that were.
        count: how many are taken.

    Raises:
        ValueError: there are too few.
    """
    queues: dict[str, dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    for candidate in candidates:
        relation, name = group(candidate)
        queues[relation][name].append(candidate)
    turns = {relation: _turns(groups, key) for relation, groups in queues.items()}
    taken: list[Candidate] = []
    while len(taken) < count and turns:
        for relation in sorted(turns, key=lambda relation: rank("turn", relation)):
            while len(taken) < count and turns[relation]:
                candidate = turns[relation].pop()
                if accept(candidate):
                    taken.append(candidate)
                    break
            if not turns[relation]:
                del turns[relation]
    if len(taken) < count:
        raise ValueError(f"only {len(taken)} of {count} questions could be made; add facts")
    return taken


def _turns(groups: dict[str, list[Candidate]], key: Callable[[Candidate], str]) -> list[Candidate]:
    """The candidates of all groups in one list, to be taken from its end: one of each group, then another of each."""
    places: list[tuple[int, int, Candidate]] = []
    for name, candidates in groups.items():
        ordered = sorted(candidates, key=lambda candidate: rank("queue", key(candidate)))
        places += [(turn, rank("turn", name), candidate) for turn, candidate in enumerate(ordered)]
    return [candidate for _, _, candidate in sorted(places, key=lambda place: place[:2], reverse=True)]
