"""What EfficientRAG's models learn from: labels by annotations, examples, refilled questions."""

import json
import re
from graphlib import CycleError

import pytest
from scripted import ScriptedRetriever

from hoptimizer.common.errors import UserError
from hoptimizer.common.text import find, folded
from hoptimizer.eval.datasets.hotpotqa import WikiItem
from hoptimizer.eval.datasets.published_formats import MusiqueItem
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.optimizers.labels.hop_labels import annotated, read_labels, write_labels
from hoptimizer.optimizers.labels.hop_order import hop_order
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
        BRIDGE.question, "film", ["Ines Moreau"], "continue", [],
    )  # fmt: skip
    assert (second.query, second.passage, second.useful, second.tag, second.after) == (
        "Where was born Ines Moreau", "moreau", ["Lyon"], "finish", [0],
    )  # fmt: skip
    assert [first.text[start:end] for start, end in first.spans] == ["Ines Moreau"]


def test_without_hops_titles_link_the_passages():
    plain = question("The Bridge (film)", "Ines Moreau", "Lyon", ["moreau", "film"], hops=False)
    first, second = annotated(plain, CORPUS).hops
    assert (first.passage, first.useful, first.tag, first.after) == ("film", ["Ines Moreau"], "continue", [])
    assert (second.passage, second.useful, second.tag, second.after) == ("moreau", ["Lyon"], "finish", [0])


def test_passages_that_the_question_names_need_no_hop_before_them():
    both = Question(
        id="c", question="Was Ines Moreau born before Karl Adler?", answers=["yes"], passages=["adler", "moreau"]
    )
    assert [(hop.tag, hop.after, hop.useful) for hop in annotated(both, CORPUS).hops] == [("finish", [], [])] * 2


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


BOTH = Question(
    id="e",
    question="Where did the director of The Bridge and the director of The Tower meet?",
    answers=["Lyon"],
    passages=["film", "tower", "other"],
    hops=[
        Hop(question="Who directed The Bridge?", answer="Ines Moreau", passage="film"),
        Hop(question="Who directed The Tower?", answer="Karl Adler", passage="tower"),
        Hop(question="Where did Ines Moreau and Karl Adler meet?", answer="Lyon", passage="other"),
    ],
)
BORN = Question(
    id="f",
    question="Was the director of The Bridge born before the director of The Tower?",
    answers=["no"],
    passages=["film", "tower", "moreau", "adler"],
    hops=[
        *BOTH.hops[:2],
        Hop(question="When was Ines Moreau born?", answer="1901", passage="moreau"),
        Hop(question="Where was Karl Adler born?", answer="Bern", passage="adler"),
    ],
)


def test_a_hop_after_several_others_gets_the_words_of_all():
    *before, last = annotated(BOTH, CORPUS).hops
    assert [(hop.tag, hop.after) for hop in before] == [("continue", [])] * 2
    assert (last.query, last.tag, last.after) == ("Where did and meet Ines Moreau Karl Adler", "finish", [0, 1])
    [example] = filter_examples([annotated(BOTH, CORPUS)])
    assert example.inputs == {"query": BOTH.question, "known": "Ines Moreau Karl Adler"}
    assert copied(example) == example.output == last.query


def test_the_query_that_is_written_anew_is_that_of_the_deepest_hop():
    hops = [
        Hop(question="Who directed The Bridge?", answer="Ines Moreau", passage="film"),
        Hop(question="Where was Ines Moreau born?", answer="Lyon", passage="moreau"),
        Hop(question="Who directed The Tower?", answer="Karl Adler", passage="tower"),
        Hop(question="When was Karl Adler in Lyon?", answer="1920", passage="adler"),
    ]
    asked = "When was the director of The Tower in the city where the director of The Bridge was born?"
    one = Question(id="g", question=asked, answers=["1920"], passages=["film", "moreau", "tower", "adler"], hops=hops)
    labels = annotated(one, CORPUS)
    assert [(hop.passage, hop.after) for hop in labels.hops] == [
        ("film", []), ("tower", []), ("moreau", [0]), ("adler", [1, 2]),
    ]  # fmt: skip
    last = filter_examples([labels])[-1]
    assert last.inputs == {"query": labels.hops[2].query, "known": "Karl Adler Lyon"}
    assert copied(last) == last.output == labels.hops[3].query == "When was in was Karl Adler Lyon"


def test_an_answer_within_another_one_is_not_named():
    hops = [
        Hop(question="Which city lies on the Ouse?", answer="York", passage="film"),
        Hop(question="Which city is called after it?", answer="New York", passage="tower"),
        Hop(question="How many people live in New York?", answer="8 million", passage="other"),
    ]
    one = Question(id="h", question="How many?", answers=["8 million"], passages=["film", "tower", "other"], hops=hops)
    assert annotated(one, CORPUS).hops[2].after == [1]


def test_a_possessive_names_the_answer():
    hops = [
        Hop(question="Who directed The Bridge?", answer="Tove Lo", passage="film"),
        Hop(question="What is Tove Lo's date of birth?", answer="1987", passage="moreau"),
    ]
    asked = "When was the director of The Bridge born?"
    one = Question(id="p", question=asked, answers=["1987"], passages=["film", "moreau"], hops=hops)
    assert [(hop.tag, hop.after) for hop in annotated(one, CORPUS).hops] == [("continue", []), ("finish", [0])]


def test_hops_of_a_merged_round_share_one_query_with_the_words_of_the_round_before():
    own, merged = annotated(BORN, CORPUS).hops, annotated(BORN, CORPUS, merged=True).hops
    assert [(hop.query, hop.after) for hop in own[2:]] == [("Was born Ines Moreau", [0]), ("Was born Karl Adler", [1])]
    assert [(hop.query, hop.after) for hop in merged[2:]] == [("Was born Ines Moreau Karl Adler", [0, 1])] * 2
    assert [hop.tag for hop in merged] == [hop.tag for hop in own] == ["continue", "continue", "finish", "finish"]
    [example] = filter_examples([annotated(BORN, CORPUS, merged=True)], by_span=False)
    assert example.inputs == {"query": BORN.question, "known": "Ines Moreau Karl Adler"}
    assert copied(example) == example.output == "Was born Ines Moreau Karl Adler"


def test_titles_of_a_merged_round_share_one_query_too():
    plain = BORN.model_copy(update={"hops": []})
    own, merged = (annotated(plain, CORPUS, merged=one).hops for one in (False, True))
    assert [hop.after for hop in own] == [[], [], [0], [1]]
    assert [hop.after for hop in merged] == [[], [], [0, 1], [0, 1]]
    assert all(find(hop.query, "Ines Moreau Karl Adler") for hop in merged[2:])


def test_hops_in_a_circle_have_no_order():
    with pytest.raises(CycleError):
        hop_order([[1], [0]], merged=False)


def copied(example):
    texts = (example.inputs["query"], example.inputs["known"])
    return " ".join(texts[side][start:end] for side, (start, end) in example.copied)


def converted(items):
    """Items of a published file with the questions that they become, and a corpus of their paragraphs."""
    pool = {}

    def take(title, text):
        id = f"{title}: {text}"
        pool[id] = Passage(id, title, text)
        return id

    return [(item, item.convert(take, None)) for item in items], Corpus(list(pool.values()))


@pytest.mark.parametrize("merged", [False, True])
def test_musiques_references_to_several_answers_are_all_filled_in(published, merged):
    lines = (published / "musique" / "train_100.jsonl").read_text().splitlines()
    pairs, corpus = converted([MusiqueItem.model_validate_json(line) for line in lines])
    seen = 0
    for item, question in pairs:
        steps = item.question_decomposition
        several = {n: [int(ref) - 1 for ref in re.findall(r"#(\d)", step.question)] for n, step in enumerate(steps)}
        labels = annotated(question, corpus, merged)
        queries = {hop.asked: hop.query for hop in labels.hops}
        for number, references in several.items():
            if len(references) < 2:
                continue
            seen += 1
            query = queries[question.hops[number].question]
            for reference in references:
                assert set(folded(steps[reference].answer).split()) <= set(folded(query).split()), query
    assert seen == 5


def test_2wikis_bridge_comparisons_get_both_names_where_rounds_are_merged(published):
    items = json.loads((published / "2wikimultihopqa" / "train_500.json").read_text())
    pairs, corpus = converted([WikiItem.model_validate(item) for item in items])
    bridges = [question for item, question in pairs if item.type == "bridge_comparison"]
    compared = 0
    for question in bridges:
        own, merged = (annotated(question, corpus, one).hops for one in (False, True))
        names = [hop.answer for hop in question.hops[:2]]
        if [hop.after for hop in own] != [[], [], [0], [1]]:  # such as where one director made both films
            continue
        compared += 1
        for hop, name in zip(own[2:], names, strict=True):
            assert find(hop.query, name), hop.query
        for hop in merged[2:]:
            assert all(find(hop.query, name) for name in names), hop.query
    assert compared > 0.9 * len(bridges) > 50


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


def test_passages_that_a_copy_goes_on_naming_are_none_to_leave_out():
    both = Question(
        id="both",
        question="Who is older, the director of The Bridge (film) or Karl Adler?",
        answers=["Karl Adler"],
        passages=["film", "adler", "other"],
        hops=[
            Hop(question="Who directed The Bridge (film)?", answer="Ines Moreau", passage="film"),
            Hop(question="When was Karl Adler born?", answer="Bern", passage="adler"),
        ],
    )
    first = annotated(both, CORPUS)
    assert first.passages == ["other"]
    [copy] = [one for one in refilled([first, annotated(TOWER, CORPUS)], CORPUS, 1, seed=1) if one.id == "both-0"]
    assert ([hop.passage for hop in copy.hops], copy.passages) == (["tower"], ["other", "adler"])
    found = {copy.question: [CORPUS[id] for id in ("adler", "other", "moreau")]}
    examples = labeler_examples([copy], ScriptedRetriever(found), 2, finish=True)
    assert [example.inputs["passage"] for example in examples if example.output == "terminate"] == [
        str(CORPUS["moreau"])
    ]


def test_what_nothing_is_like_is_not_refilled():
    assert refilled([annotated(BRIDGE, CORPUS)], CORPUS, copies=3, seed=1) == []
