"""What can be guessed without reading anything: the floor that every program has to beat.

``python -m hoptimizer.eval.blind_guess atlas [--train N] [--test N]`` prints its scores on a data set's test questions.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

from pydantic import ValidationError

from hoptimizer.common.errors import UserError
from hoptimizer.common.validation import explain
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.settings import DataSettings
from hoptimizer.eval.metrics import Gold, exact_match, f1
from hoptimizer.eval.statistics import Estimate, mean


def blind_guesses(train: Sequence[Gold], questions: Sequence[str]) -> list[str]:
    """Answers from the wording of the questions alone.

    A guess is the commonest answer of the training questions that begin with the same words: with as many of them as
    at least two training questions share. Where most of these questions contain their answer, as those that compare
    two things do, it is the second of the two that the question names.

    Args:
        train: training questions with their answers, at least one.
        questions: the questions to guess at.

    Returns:
        a guess per question, in the same order.

    Example:
        >>> from hoptimizer.eval import Question
        >>> from hoptimizer.eval.blind_guess import blind_guesses
        >>> capitals = [("France", "Paris"), ("Chad", "Paris"), ("Norway", "Oslo")]
        >>> train = [Question(id=at, question=f"What is the capital of {at}?", answers=[city]) for at, city in capitals]
        >>> blind_guesses(train, ["What is the capital of Peru?", "Where?"])
        ['Paris', 'Paris']
    """
    alike: dict[tuple[str, ...], list[Gold]] = defaultdict(list)
    for known in train:
        for opening in _openings(known.question):
            alike[opening].append(known)
    return [_guess(question, _most_alike(question, alike)) for question in questions]


def blind_scores(train: Sequence[Gold], test: Sequence[Gold]) -> dict[str, Estimate]:
    """EM and F1 of :func:`blind_guesses`, from 0 to 1, with their bootstrap intervals.

    Args:
        train: training questions with their answers, at least one.
        test: the questions to guess at, at least one.
    """
    guesses = blind_guesses(train, [gold.question for gold in test])
    return {
        name: mean([metric(guess, gold.answers) for guess, gold in zip(guesses, test, strict=True)])
        for name, metric in (("em", exact_match), ("f1", f1))
    }


def _openings(question: str) -> list[tuple[str, ...]]:
    """The beginnings of a question, the longest first, the empty one last."""
    words = tuple(question.lower().split())
    return [words[:count] for count in range(len(words), -1, -1)]


def _most_alike(question: str, alike: dict[tuple[str, ...], list[Gold]]) -> list[Gold]:
    """The training questions with the longest common beginning that at least two of them have."""
    shared = [opening for opening in _openings(question) if len(alike.get(opening, [])) >= 2]
    return alike[shared[0]] if shared else alike[()]


def _guess(question: str, alike: list[Gold]) -> str:
    named = sum(any(answer in known.question for answer in known.answers) for known in alike)
    if " or " in question and 2 * named > len(alike):
        return _second(question)
    return Counter(known.answers[0] for known in alike).most_common(1)[0][0]


def _second(question: str) -> str:
    """What stands after the last "or", without the words for what it is: ``Titan``, not ``the moon Titan``."""
    words = question.rsplit(" or ", 1)[1].rstrip("? ").split()
    name = next((at for at, word in enumerate(words) if not word[0].islower()), 0)
    return " ".join(words[name:])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Score blind guesses on a data set's test questions.")
    parser.add_argument("data", help="name or folder of the data set")
    parser.add_argument("--train", type=int, help="its first training questions (default: all)")
    parser.add_argument("--test", type=int, help="its first test questions (default: all)")
    options = parser.parse_args()
    try:
        data = load(DataSettings(name=options.data, train=options.train, test=options.test))
    except ValidationError as error:
        sys.exit(explain(error, DataSettings, prefix="--"))
    except UserError as error:
        sys.exit(str(error))
    for name, score in blind_scores(data.split("train"), data.split("test")).items():
        interval = f"[{100 * score.low:.1f}, {100 * score.high:.1f}]"
        print(f"{name} {100 * score.mean:.1f} {interval} n = {score.n}")


if __name__ == "__main__":
    main()
