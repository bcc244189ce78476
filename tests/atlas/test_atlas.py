"""The bundled data set: its files, and what its questions promise."""

import re
from collections import Counter
from itertools import chain

import bm25s
import pytest
import Stemmer
from atlas_files import SIZES, read_rows

from hoptimizer.eval.atlas import DATA
from hoptimizer.eval.atlas.balance import Drawn
from hoptimizer.eval.atlas.generate import generate
from hoptimizer.eval.atlas.selection import draw
from hoptimizer.eval.datasets import dataset

TYPES = {"single", "bridge2", "bridge3", "bridge4", "comparison", "yesno"}


@pytest.fixture(scope="module")
def drawn(facts) -> dict[str, list[Drawn]]:
    return draw(facts)


def _path(question: dict) -> tuple[str, ...]:
    """The entities of a question, with the answer where it is one more; pairs count in either order."""
    if question["type"] in ("comparison", "yesno"):
        return tuple(sorted(question["passages"]))
    return (*question["passages"], question["answers"][0])


def test_committed_files_are_what_the_generator_makes(tmp_path):
    assert generate(tmp_path) == {"corpus": len(read_rows("corpus")), **SIZES}
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in DATA.iterdir()}


def test_loads_as_a_data_set_without_problems():
    assert {name: len(split) for name, split in dataset.load("atlas").splits.items()} == SIZES
    assert dataset.check("atlas").problems == []


def test_corpus_is_large_and_its_passages_short(corpus):
    assert len(corpus) == len(read_rows("corpus")) >= 500
    assert len({passage["title"] for passage in corpus.values()}) == len(corpus)
    for passage in corpus.values():
        assert passage["title"].lower() in passage["text"].lower()
        assert len(passage["text"].split()) <= 60
        assert not re.search(r"[{}]|(?<!Were )None|~|\.\.|  ", passage["text"]), passage


def test_every_split_mixes_the_types(splits):
    for split, rows in splits.items():
        assert len(rows) == SIZES[split]
        share = {type: count / len(rows) for type, count in Counter(row["type"] for row in rows).items()}
        assert share.keys() == TYPES
        assert 0.15 <= share["single"] <= 0.25
        assert 0.25 <= share["bridge2"] <= 0.35
        answers = Counter(row["answers"][0] for row in rows if row["type"] == "yesno")
        assert abs(answers["yes"] - answers["no"]) <= 1


def test_ids_and_questions_are_unique(questions):
    assert len({question["id"] for question in questions}) == len(questions)
    assert len({question["question"].lower() for question in questions}) == len(questions)


def test_supporting_passages_exist_and_cover_the_hops(questions, corpus):
    for question in questions:
        assert len(set(question["passages"])) == len(question["passages"])
        assert question["passages"] == [hop["passage"] for hop in question["hops"]]
        assert set(question["passages"]) <= corpus.keys()


def test_passages_state_the_answers_word_for_word(questions, corpus):
    for question in questions:
        for hop in question["hops"]:
            assert hop["answer"].lower() in corpus[hop["passage"]]["text"].lower(), question["id"]
        answer = question["answers"][0]
        if question["type"] == "comparison":
            assert answer in question["question"]
        elif question["type"] == "yesno":
            assert answer in ("yes", "no")
        else:
            assert question["hops"][-1]["answer"] == answer
            assert answer in corpus[question["passages"][-1]]["text"]


def test_bridge_questions_hide_what_lies_between(questions):
    for question in questions:
        if question["type"].startswith("bridge"):
            assert len(question["hops"]) == int(question["type"].removeprefix("bridge"))
            for hop, following in zip(question["hops"], question["hops"][1:], strict=False):
                assert hop["answer"] not in question["question"], question["id"]
                assert hop["answer"] in following["question"], question["id"]
            assert question["answers"][0] not in question["question"]


def test_rationales_end_in_the_answer(questions):
    for question in questions:
        assert question["rationale"].endswith(f". So the answer is: {question['answers'][0]}.")
        for hop in question["hops"]:
            assert hop["answer"].lower() in question["rationale"].lower()


def test_chains_of_a_split_are_seen_in_no_other(splits):
    paths = {split: Counter(_path(row) for row in rows) for split, rows in splits.items()}
    assert all(count == 1 for counter in paths.values() for count in counter.values())
    assert paths["test"].keys().isdisjoint(paths["train"] | paths["dev"])
    assert paths["dev"].keys().isdisjoint(paths["train"])


def test_no_pair_is_compared_in_two_splits(splits):
    starts = {
        split: {
            frozenset((row["passages"][0], row["passages"][len(row["passages"]) // 2]))
            for row in rows
            if row["type"] in ("comparison", "yesno")
        }
        for split, rows in splits.items()
    }
    assert starts["test"].isdisjoint(starts["train"] | starts["dev"])
    assert starts["dev"].isdisjoint(starts["train"])


def test_a_hop_of_a_chain_is_no_question_of_its_own(questions):
    chains = [row for row in questions if row["type"] not in ("comparison", "yesno")]
    asked = {row["id"]: "".join(hop["question"] for hop in row["hops"]) for row in chains}
    for row in chains:
        assert not any(asked[row["id"]] in other for id, other in asked.items() if id != row["id"]), row


@pytest.mark.parametrize("split", SIZES)
def test_every_beginning_of_a_split_has_its_share_of_each_type_relation_and_side(drawn, splits, split):
    assert [{"id": row["id"], **one.row} for one, row in zip(drawn[split], splits[split], strict=True)] == splits[split]
    features = [{one.row["type"], f"last: {one.relation}", f"{one.row['type']} {one.side}"} for one in drawn[split]]
    total = Counter(chain.from_iterable(features))
    seen: Counter[str] = Counter()
    for count, given in enumerate(features, 1):
        seen.update(given)
        assert all(abs(seen[name] - total[name] * count / len(features)) < 1.5 for name in total)


def test_splits_have_the_same_share_of_each_last_relation_and_side(drawn):
    for feature in (lambda one: one.relation, lambda one: (one.row["type"], one.side)):
        counts = {split: Counter(map(feature, ones)) for split, ones in drawn.items()}
        total = sum(counts.values(), Counter())
        for split, count in counts.items():
            share = SIZES[split] / sum(SIZES.values())
            assert all(abs(count[name] - share * total[name]) < 2 for name in total), (split, count)


def test_no_relation_makes_up_most_of_the_questions(drawn):
    for ones in drawn.values():
        years = sum(one.relation in ("born", "died", "year") for one in ones)
        assert 0.2 <= years / len(ones) <= 0.35


def test_no_answer_is_worth_guessing(questions):
    answers = Counter(question["answers"][0] for question in questions if question["type"] != "yesno")
    assert answers.most_common(1)[0][1] <= 8


def test_one_search_by_keywords_finds_too_little(questions, splits, corpus):
    stemmer = Stemmer.Stemmer("english")

    def tokens(texts: list[str]) -> bm25s.tokenization.Tokenized:
        return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)

    ids = list(corpus)
    index = bm25s.BM25()
    index.index(tokens([f"{p['title']}. {p['text']}" for p in corpus.values()]), show_progress=False)
    for rows in (questions, splits["test"]):
        found, _ = index.retrieve(tokens([row["question"] for row in rows]), k=2, show_progress=False)
        shares = [
            len({ids[i] for i in ranking} & set(row["passages"])) / len(row["passages"])
            for row, ranking in zip(rows, found, strict=True)
        ]
        assert sum(shares) / len(shares) < 0.6
