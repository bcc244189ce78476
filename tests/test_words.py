"""Words of a text: finding phrases, joining what was labelled, growing it to whole names."""

import pytest

from hoptimizer.common.text import find, folded, joined, whole_names, words

TEXT = (
    "The Prairie King is a 1927 film by B. Reeves Eason, son of Leopold de Salis-Soglio. "
    "Born October 5, 1886 in Córdoba."
)


def texts(spans, text=TEXT):
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("phrase", "found"),
    [
        ("prairie king", ["Prairie King"]),
        ("cordoba", ["Córdoba"]),
        ("B Reeves Eason", ["B. Reeves Eason"]),
        ("King of", []),
        ("rairie", []),
        ("?!", []),
        ("", []),
    ],
)
def test_finds_phrases_word_by_word(phrase, found):
    assert texts(find(TEXT, phrase)) == found


def test_finds_every_place_once():
    assert find("aa aa aa aa", "aa aa") == [(0, 5), (6, 11)]


def test_folds_case_accents_and_punctuation():
    assert folded("  Córdoba, “2nd” ed.") == "cordoba 2nd ed"


def test_joins_words_that_punctuation_alone_divides():
    chosen = [place for place in words(TEXT) if TEXT[slice(*place)] in ("October", "5", "1886", "Córdoba")]
    assert texts(joined(TEXT, chosen)) == ["October 5, 1886", "Córdoba"]


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("Eason", "B. Reeves Eason"),
        ("Prairie", "The Prairie King"),
        ("Salis", "Leopold de Salis-Soglio"),
        ("1927 film", "1927 film"),
        ("Córdoba", "Córdoba"),
    ],
)
def test_grows_to_whole_names(part, whole):
    assert texts(whole_names(TEXT, find(TEXT, part))) == [whole]


def test_a_name_ends_with_its_sentence():
    text = "He met Mary. Paris was far."
    assert texts(whole_names(text, find(text, "Mary")), text) == ["Mary"]


def test_parts_of_one_name_are_one():
    assert texts(whole_names(TEXT, [*find(TEXT, "Reeves"), *find(TEXT, "Eason")])) == ["B. Reeves Eason"]
