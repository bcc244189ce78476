"""What EfficientRAG's models learn from: labels by annotations, examples, refilled questions."""

import pytest
from scripted import ScriptedRetriever

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.optimizers.labels.hop_labels import annotated, read_labels, write_labels
from hoptimizer.optimizers.labels.tagger_examples import filter_examples, labeler_examples, refilled
from hoptimizer.retrieval import Corpus, Passage

CORPUS = Corpus(
    [
        Passage("film", "The Bridge (film)", "The Bridge is a film directed by Ines Moreau."),
        Passage("moreau", "Ines Moreau", "Ines Moreau was born in Lyon in 1901."),
        Passage("tower", "The Tower", "The Tower is a film directed by Karl Adler."),
        Passage("adler", "Karl Adler", "Karl Adler was born in Bern."),
        Passage("other", "Lyon", "Lyon is a city."),
    ]
)


def question(film, director, city, ids, hops=True):
    chain = [
        Hop(question=f"Who directed {film}?", answer=director, passage=ids[0]),
        Hop(question=f"Where was {director} born?", answer=city, passage=ids[1]),
    ]
    return Question(
        id=film,
        question=f"Where was the director of {film} born?",
        answers=[city],
        passages=ids,
        hops=chain if hops else [],
    )


BRIDGE = question("The Bridge (film)", "Ines Moreau", "Lyon", ["film", "moreau"])
TOWER = question("The Tower", "Karl Adler", "Bern", ["tower", "adler"])


def test_hops_say_what_counts_and_what_comes_next():
    first, second = annotated(BRIDGE, CORPUS).hops
    assert (first.query, first.passage, first.useful, first.tag, first.after) == (
        BRIDGE.question, "film", ["Ines Moreau"], "continue", None,
    )  # fmt: skip
    assert (second.query, second.passage, second.useful, second.tag, second.after) == (
        "Where was born Ines Moreau", "moreau", ["Lyon"], "finish", 0,
    )  # fmt: skip
    assert [first.text[start:end] for start, end in first.spans] == ["Ines Moreau"]


def test_without_hops_titles_link_the_passages():
    plain = question("The Bridge (film)", "Ines Moreau", "Lyon", ["moreau", "film"], hops=False)
    first, second = annotated(plain, CORPUS).hops
    assert (first.passage, first.useful, first.tag, first.after) == ("film", ["Ines Moreau"], "continue", None)
    assert (second.passage, second.useful, second.tag, second.after) == ("moreau", ["Lyon"], "finish", 0)


def test_passages_that_the_question_names_need_no_hop_before_them():
    both = Question(
        id="c", question="Was Ines Moreau born before Karl Adler?", answers=["yes"], passages=["adler", "moreau"]
    )
    assert [(hop.tag, hop.after, hop.useful) for hop in annotated(both, CORPUS).hops] == [("finish", None, [])] * 2


def test_later_hops_keep_what_is_still_open_in_the_query():
    hops = [
        Hop(question="Who directed The Tower?", answer="Karl Adler", passage="tower"),
        Hop(question="Karl Adler >> place of birth", answer="Bern", passage="adler"),
        Hop(question="How many people live in Bern?", answer="Lyon", passage="other"),
    ]
    asked = "How many people live at the place of birth of who directed The Tower?"
    one = Question(id="d", question=asked, answers=["1"], passages=["tower", "adler", "other"], hops=hops)
    assert [hop.query for hop in annotated(one, CORPUS).hops] == [
        asked,
        "How many people live place of birth of Karl Adler",
        "How many people live Bern",
    ]


def test_a_question_without_passages_is_no_label():
    labels = annotated(Question(id="x", question="Why?", answers=["so"]), CORPUS)
    assert labels.hops == []
    assert labels.failure == "neither hops nor supporting passages"


def test_labels_are_read_as_they_were_written(tmp_path):
    labels = [annotated(BRIDGE, CORPUS), annotated(Question(id="x", question="Why?", answers=["so"]), CORPUS)]
    write_labels(labels, tmp_path / "labels.jsonl")
    assert read_labels(tmp_path / "labels.jsonl") == labels


def test_a_broken_row_of_labels_is_named(tmp_path):
    (tmp_path / "labels.jsonl").write_text('{"id": "a", "question": "Why?", "hops": [{"query": "Why?"}]}\n')
    with pytest.raises(UserError, match=r"labels.jsonl:1: 'hops\[0\].passage' is missing"):
        read_labels(tmp_path / "labels.jsonl")


def test_the_labeler_learns_from_hops_and_from_the_hardest_strangers():
    labels = [annotated(BRIDGE, CORPUS)]
    later = labels[0].hops[1].query
    found = {
        BRIDGE.question: [CORPUS["film"], CORPUS["moreau"], CORPUS["tower"], CORPUS["other"]],
        later: [CORPUS["adler"]],
    }
    examples = labeler_examples(labels, ScriptedRetriever(found), 1, finish=True)
    assert [(e.inputs["query"], e.inputs["passage"][:10], e.output, len(e.copied)) for e in examples] == [
        (BRIDGE.question, "The Bridge", "continue", 1),
        (later, "Ines Morea", "finish", 1),
        (BRIDGE.question, "The Tower:", "terminate", 0),  # moreau belongs to a later hop: no negative
        (later, "Karl Adler", "terminate", 0),
    ]
    two_tags = labeler_examples(labels, ScriptedRetriever({}), 0, finish=False)
    assert [example.output for example in two_tags] == ["continue", "continue"]


def test_the_filter_learns_which_words_stay():
    [example] = filter_examples([annotated(BRIDGE, CORPUS)])
    assert example.inputs == {"query": BRIDGE.question, "known": "Ines Moreau"}
    texts = (example.inputs["query"], example.inputs["known"])
    assert " ".join(texts[side][start:end] for side, (start, end) in example.copied) == example.output


def test_refilling_asks_the_same_of_another_passage():
    labels = [annotated(BRIDGE, CORPUS), annotated(TOWER, CORPUS)]
    copies = refilled(labels, CORPUS, copies=4, seed=1)
    assert len(copies) == 8
    names = {"The Tower", "The Bridge (film)", "The Bridge"}
    for copy in copies:
        first, second = copy.hops
        assert copy.question == first.query
        assert copy.question in {f"Where was the director of {name} born?" for name in names}
        assert (first.passage in ("tower", "film"), first.tag) == (True, "continue")
        assert first.text.startswith("The Tower") == ("Tower" in copy.question)
        assert second.query.removeprefix("Where was born ") == bare(second)
    assert refilled(labels, CORPUS, copies=4, seed=1) == copies


def bare(hop):
    return CORPUS[hop.passage].title


def test_what_nothing_is_like_is_not_refilled():
    assert refilled([annotated(BRIDGE, CORPUS)], CORPUS, copies=3, seed=1) == []
