"""The blind guess: from the wording of training questions alone."""

import subprocess
import sys

from hoptimizer.eval import Question
from hoptimizer.eval.blind_guess import blind_guesses, blind_scores
from hoptimizer.eval.datasets.dataset import load
from hoptimizer.eval.datasets.settings import DataSettings


def _train(*rows: tuple[str, str]) -> list[Question]:
    return [Question(id=str(number), question=asked, answers=[answer]) for number, (asked, answer) in enumerate(rows)]


def test_the_commonest_answer_to_the_same_beginning_is_guessed():
    train = _train(
        ("Which river runs through Ulm?", "Danube"),
        ("Which river runs through Vienna?", "Danube"),
        ("Which river runs through Paris?", "Seine"),
        ("Which sea is it?", "Baltic"),
    )
    assert blind_guesses(train, ["Which river runs through Linz?", "Which lake?"]) == ["Danube", "Danube"]


def test_a_beginning_that_one_question_has_is_too_little_to_go_by():
    train = _train(("Who wrote Emma?", "Austen"), ("Who wrote Ulysses?", "Joyce"), ("Who wrote Dubliners?", "Joyce"))
    assert blind_guesses(train, ["Who wrote Emma?"]) == ["Joyce"]


def test_an_unknown_beginning_gets_the_commonest_answer_of_all():
    train = _train(("Who?", "Joyce"), ("When?", "1922"), ("In what year?", "1922"))
    assert blind_guesses(train, ["Where?"]) == ["1922"]


def test_of_two_candidates_the_second_is_guessed_by_its_name():
    train = _train(
        ("Which was found first, the moon Io or the moon Rhea?", "Io"),
        ("Which was found first, tin or zinc?", "zinc"),
    )
    asked = ["Which was found first, the moon Dione or the planet Uranus?", "Which was found first, gold or iron?"]
    assert blind_guesses(train, asked) == ["Uranus", "iron"]


def test_an_or_that_names_no_candidates_is_no_choice():
    train = _train(
        ("In which city or town was Kant born?", "Kaliningrad"), ("In which city or town was Bach born?", "Eisenach")
    )
    assert blind_guesses(train, ["In which city or town was Nansen born?"]) == ["Kaliningrad"]


def test_scores_come_with_their_interval():
    train = _train(("Who?", "James Joyce"))
    scores = blind_scores(train, _train(("Who?", "James Joyce"), ("Who?", "Joyce"), ("Who?", "Austen")))
    assert scores["em"].mean == 1 / 3
    assert scores["f1"].mean > scores["em"].mean
    assert scores["em"].n == 3
    assert scores["em"].low <= scores["em"].mean <= scores["em"].high


def test_guessing_blindly_does_not_pay_on_atlas():
    data = load(DataSettings(name="atlas"))
    scores = blind_scores(data.split("train"), data.split("test"))
    assert 0.05 < scores["em"].mean < 0.3


def test_the_command_prints_the_scores():
    command = [sys.executable, "-m", "hoptimizer.eval.blind_guess", "atlas", "--train", "200", "--test", "30"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.startswith("em ")
    assert "n = 30" in out
