import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hoptimizer.common.errors import UserError
from hoptimizer.config import make_config
from hoptimizer.eval import Question, check, load
from hoptimizer.eval.answers import hotpotqa_f1
from hoptimizer.eval.datasets.folder import read_passages
from hoptimizer.eval.datasets.importers import import_published
from hoptimizer.eval.datasets.pool import passage_id
from hoptimizer.eval.documents.importing import import_documents
from hoptimizer.eval.splits import divide, parse_sizes
from hoptimizer.workbench import Workbench

SAMPLES = Path(__file__).parents[2] / "shared" / "data"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the published samples (../shared/data) are absent")

HOTPOT = {
    "_id": "h1",
    "type": "bridge",
    "level": "easy",
    "question": "Where was the bridge's designer born?",
    "answer": "Lyon",
    "context": [
        ["The Bridge", ["The bridge is of steel.", " Ines Moreau designed it."]],
        ["Ines Moreau (engineer)", ["Ines Moreau was born in Lyon."]],
        ["Tower", ["The tower is tall."]],
    ],
    "supporting_facts": [["Ines Moreau (engineer)", 0], ["The Bridge", 1], ["The Bridge", 7]],
}
FACTS = [["The Bridge", "designer", "Ines Moreau"], ["Inès Moreau", "place of birth", "Lyon"]]
WIKI = {**HOTPOT, "_id": "w1", "evidences": FACTS}
CHAIN = {
    "_id": "w1",
    "qa_pairs": [
        {"question": "Who designed the bridge?", "answer": "Ines Moreau designed it."},
        {"question": "Where was Ines Moreau born?", "answer": "In Lyon."},
    ],
    "explanation": "Ines Moreau designed it, and she was born in Lyon.",
}
MUSIQUE = {
    "id": "2hop__12_34",
    "question": "Where was the bridge's designer born?",
    "answer": "Lyon",
    "answer_aliases": ["Lyons", "Lyon", " "],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Tower", "paragraph_text": "The tower is tall.", "is_supporting": False},
        {"idx": 1, "title": "Bridge", "paragraph_text": "Ines Moreau designed it.", "is_supporting": True},
        {"idx": 2, "title": "Bridge", "paragraph_text": "Another bridge.", "is_supporting": False},
        {"idx": 3, "title": "Ines Moreau", "paragraph_text": "Born in Lyon.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 12, "question": "Bridge >> designer", "answer": "Ines Moreau", "paragraph_support_idx": 1},
        {"id": 34, "question": "Where was #1 born, in the #9 city ?", "answer": "Lyon", "paragraph_support_idx": 3},
    ],
}


def write(path: Path, items: object) -> Path:
    path.write_text(json.dumps(items, ensure_ascii=False), encoding="utf-8")
    return path


def write_lines(path: Path, items: list[dict]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def one(tmp_path: Path, name: str, item: dict, **options) -> tuple[Question, Path]:
    out = tmp_path / "out"
    import_published(name, {"dev": write(tmp_path / "in.json", [item])}, out, **options)
    assert check(out).problems == []
    return load(str(out)).split("dev")[0], out


def test_hotpotqa_keeps_answer_type_and_the_supporting_paragraphs_in_order(tmp_path: Path):
    question, out = one(tmp_path, "hotpotqa", HOTPOT)
    corpus = load(str(out)).corpus
    assert question.id == "h1"
    assert question.answers == ["Lyon"]
    assert question.type == "bridge"
    assert question.hops == []
    assert question.rationale == (
        "The Bridge: Ines Moreau designed it. Ines Moreau (engineer): Ines Moreau was born in Lyon. "
        "So the answer is: Lyon."
    ), "from what the question names to what has the answer"
    assert [corpus[id].title for id in question.passages] == ["Ines Moreau (engineer)", "The Bridge"]
    assert corpus[question.passages[1]].text == "The bridge is of steel. Ines Moreau designed it."
    assert len(corpus) == 3


def test_2wiki_takes_hops_from_its_triples(tmp_path: Path):
    question, _ = one(tmp_path, "2wikimultihopqa", WIKI)
    moreau, bridge = question.passages
    assert [(hop.question, hop.answer, hop.passage) for hop in question.hops] == [
        ("What is the designer of The Bridge?", "Ines Moreau", bridge),
        ("What is the place of birth of Inès Moreau?", "Lyon", moreau),
    ]
    assert question.rationale.endswith("So the answer is: Lyon.")


def test_2wiki_takes_questions_of_hops_and_rationale_from_the_decompositions(tmp_path: Path):
    sidecar = write_lines(tmp_path / "chains.jsonl", [CHAIN, {**CHAIN, "_id": "of another question"}])
    question, _ = one(tmp_path, "2wikimultihopqa", WIKI, decompositions=[sidecar])
    assert [hop.question for hop in question.hops] == [pair["question"] for pair in CHAIN["qa_pairs"]]
    assert [hop.answer for hop in question.hops] == ["Ines Moreau", "Lyon"]
    assert question.rationale == CHAIN["explanation"]


def test_2wiki_decompositions_that_do_not_fit_the_triples_leave_their_questions_alone(tmp_path: Path):
    chain = {**CHAIN, "qa_pairs": [*CHAIN["qa_pairs"], {"question": "What else?", "answer": "Nothing."}]}
    sidecar = write_lines(tmp_path / "chains.jsonl", [chain])
    question, _ = one(tmp_path, "2wikimultihopqa", WIKI, decompositions=[sidecar])
    assert question.hops[0].question == "What is the designer of The Bridge?"


ALIASES = [
    {"Q_id": "Q456", "aliases": ["Lyons", " ", "Lyon"], "demonyms": ["Lyonnais"]},
    {"Q_id": "Q7", "aliases": ["Capital"], "demonyms": []},
]


def test_2wiki_takes_aliases_and_demonyms_of_the_answer_from_the_file_beside_it(tmp_path: Path):
    write_lines(tmp_path / "id_aliases.json", ALIASES)
    items = [
        {**WIKI, "_id": id, "answer_id": answer_id}
        for id, answer_id in (("known", "Q456"), ("unknown", "Q9"), ("null", None))
    ]
    file = write(tmp_path / "in.json", [*items, {**WIKI, "_id": "without"}])
    import_published("2wikimultihopqa", {"dev": file}, tmp_path / "out")
    assert check(tmp_path / "out").problems == []
    questions = {question.id: question for question in load(str(tmp_path / "out")).split("dev")}
    assert questions["known"].answers == ["Lyon", "Lyons", "Lyonnais"], "the answer itself comes first"
    assert all(questions[id].answers == ["Lyon"] for id in ("unknown", "null", "without"))
    assert hotpotqa_f1("the Lyonnais", questions["known"].answers) == 1


def test_aliases_are_2wikis_alone(tmp_path: Path):
    write_lines(tmp_path / "id_aliases.json", ALIASES)
    question, _ = one(tmp_path, "hotpotqa", {**HOTPOT, "answer_id": "Q456"})
    assert question.answers == ["Lyon"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"Q_id": "Q1", "aliases": []}', ["id_aliases.json:1", "'demonyms' is missing"]),
        ('\n{"aliases": [], "demonyms": []}', ["id_aliases.json:2", "'Q_id' is missing"]),
        ('{"Q_id": "Q1", "aliases": "One", "demonyms": []}', ["id_aliases.json:1", "'aliases' must be a list", "One"]),
        ('{"Q_id": "Q1", "aliases": [1], "demonyms": []}', ["id_aliases.json:1", "'aliases[0]' must be a string"]),
        ('{"Q_id": "Q1",', ["id_aliases.json:1", "malformed JSON"]),
    ],
)
def test_a_malformed_alias_is_named_and_nothing_is_written(tmp_path: Path, text: str, expected: list[str]):
    file = write(tmp_path / "in.json", [WIKI])
    (tmp_path / "id_aliases.json").write_text(text)
    assert_one_line(lambda: import_published("2wikimultihopqa", {"dev": file}, tmp_path / "out"), expected)
    assert not (tmp_path / "out").exists()


def test_a_hop_of_2wiki_has_the_passage_of_its_own_title(tmp_path: Path):
    context = [["Ines Maria Moreau de Lyon", ["A painter."]], ["Ines Moreau", ["She was born in Lyon."]]]
    facts = [["Ines Moreau", "place of birth", "Lyon"], ["Ines Maria Moreau de Lyon", "occupation", "painter"]]
    gold = [[title, 0] for title, _ in context]
    item = {**WIKI, "context": context, "supporting_facts": gold, "evidences": facts}
    question, out = one(tmp_path, "2wikimultihopqa", item)
    titles = [load(str(out)).corpus[hop.passage].title for hop in question.hops]
    assert titles == ["Ines Moreau", "Ines Maria Moreau de Lyon"]


def test_musique_fills_in_references_and_takes_aliases(tmp_path: Path):
    question, out = one(tmp_path, "musique", MUSIQUE)
    corpus = load(str(out)).corpus
    assert question.answers == ["Lyon", "Lyons"]
    assert question.type == "2hop"
    assert [corpus[id].text for id in question.passages] == ["Ines Moreau designed it.", "Born in Lyon."]
    assert [hop.question for hop in question.hops] == [
        "What is the designer of Bridge?",
        "Where was Ines Moreau born, in the #9 city?",
    ]
    assert [hop.passage for hop in question.hops] == question.passages
    assert [passage.title for passage in corpus].count("Bridge") == 2


@pytest.mark.parametrize(
    ("relation", "question"),
    [
        ("located in the administrative territorial entity", "Where is Lyon located?"),
        ("member of sports team", "Of which sports team is Lyon a member?"),
        ("part of", "What is it that Lyon is part of?"),
        ("shares border with", "What is it that Lyon shares border with?"),
        ("place of birth", "What is the place of birth of Lyon?"),
    ],
)
def test_a_triple_of_musique_is_a_question(tmp_path: Path, relation: str, question: str):
    first, *others = MUSIQUE["question_decomposition"]
    steps = [first | {"question": f"Lyon >> {relation}"}, *others]
    asked, _ = one(tmp_path, "musique", MUSIQUE | {"question_decomposition": steps})
    assert asked.hops[0].question == question


def test_unanswerable_musique_items_are_left_out_and_counted(tmp_path: Path):
    items = [MUSIQUE, {**MUSIQUE, "answerable": False}]
    made = import_published("musique", {"dev": write_lines(tmp_path / "in.jsonl", items)}, tmp_path / "out")
    assert made.splits == {"dev": 1}
    assert made.unanswerable == 1
    assert made.decomposed == 1


def test_strategyqa_has_yes_or_no_and_its_facts_for_passages(tmp_path: Path):
    item = {
        "qid": "s1",
        "term": "Albany",
        "question": "Is Albany in Georgia smaller than the one in New York?",
        "answer": True,
        "facts": ["Albany, Georgia has 75,000 people.", "Albany, New York has 100,000 people."],
        "decomposition": ["How many live in Albany, Georgia?"],
    }
    question, out = one(tmp_path, "strategyqa", item)
    assert question.answers[0] == "yes"
    assert [load(str(out)).corpus[id].text for id in question.passages] == item["facts"]


def test_questions_with_answers_alone_have_no_corpus(tmp_path: Path):
    line = {"question": "Who painted the Mona Lisa?", "answer": ["Leonardo da Vinci", "Leonardo", "Leonardo"]}
    question, out = one(tmp_path, "triviaqa", line)
    assert question.answers == ["Leonardo da Vinci", "Leonardo"]
    assert not (out / "corpus.jsonl").exists()
    config = make_config({"data": str(out), "program": "rag"})
    assert_one_line(lambda: Workbench(config).program(), ["no corpus", "data.corpus", "direct or cot"])
    from_memory = Workbench(make_config({"data": str(out), "program": {"name": "least_to_most", "retrieval": False}}))
    assert from_memory.program().retriever is None
    assert "colbert" not in from_memory.summary()
    assert Workbench(make_config({"data": str(out), "program": "direct"})).program()


def test_contexts_are_pooled_and_one_title_may_have_two_texts(tmp_path: Path):
    other = {
        **HOTPOT,
        "_id": "h2",
        "context": [*HOTPOT["context"][:2], ["Tower", ["Another  tower."]], ["Void", [" "]]],
    }
    out = tmp_path / "out"
    made = import_published(
        "hotpotqa",
        {"train": write(tmp_path / "a.json", [HOTPOT]), "test": write(tmp_path / "b.json", [other])},
        out,
    )
    assert made.splits == {"train": 1, "test": 1}
    assert made.passages == 4
    data = load(str(out))
    assert sorted(p.text for p in data.corpus if p.title == "Tower") == ["Another tower.", "The tower is tall."]
    assert data.split("train")[0].passages == data.split("test")[0].passages


def test_an_extra_corpus_adds_passages_and_keeps_its_ids(tmp_path: Path):
    extra = write(
        tmp_path / "extra.json",
        [{"title": "Mill", "text": "The mill is old."}, {"id": "T1", "title": "Tower", "text": "The tower is tall."}],
    )
    question, out = one(tmp_path, "hotpotqa", HOTPOT, corpus=extra)
    corpus = load(str(out)).corpus
    assert len(corpus) == 4
    assert "T1" in corpus
    assert question.id == "h1"


def test_html_entities_of_hotpotqa_are_resolved_and_no_others(tmp_path: Path):
    title = "Ines &quot;Iron&quot; Moreau"
    item = {**HOTPOT, "context": [[title, ["Lyon &amp; Oslo?a=1&copy=1"]]], "supporting_facts": [[title, 0]]}
    question, out = one(tmp_path, "hotpotqa", {**item, "answer": "Lyon &amp; Oslo"})
    passage = load(str(out)).corpus[question.passages[0]]
    assert (passage.title, passage.text) == ('Ines "Iron" Moreau', "Lyon & Oslo?a=1&copy=1")
    assert question.answers == ["Lyon & Oslo"]
    assert question.rationale == 'Ines "Iron" Moreau: Lyon & Oslo?a=1&copy=1 So the answer is: Lyon & Oslo.'
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("Write &lt;b&gt; in HTML: v1?user=1&region=eu.")
    import_documents(None, docs, tmp_path / "own")
    assert [p.text for p in read_passages(tmp_path / "own")] == ["Write &lt;b&gt; in HTML: v1?user=1&region=eu."]


def test_passage_ids_are_readable_and_depend_on_the_passage_alone():
    assert passage_id("Étienne Dupont (1871)", "x").startswith("etienne-dupont-1871-")
    assert passage_id("東京", "x").startswith("東京-")
    assert passage_id("…", "x").startswith("passage-")
    assert passage_id("A", "x") == passage_id("A", "x") != passage_id("A", "y")
    assert len(passage_id("long " * 100, "x")) <= 57


def test_one_file_is_divided_by_shares_or_numbers_the_same_way_for_the_same_seed(tmp_path: Path, caplog):
    file = write(tmp_path / "in.json", [{**HOTPOT, "_id": f"{n}", "question": f"Mill {n}?"} for n in range(30)])
    made = import_published("hotpotqa", file, tmp_path / "a", seed=3)
    assert made.splits == {"train": 24, "dev": 3, "test": 3}
    import_published("hotpotqa", file, tmp_path / "b", seed=3)
    import_published("hotpotqa", file, tmp_path / "c", seed=4)
    assert load(str(tmp_path / "a")).digest == load(str(tmp_path / "b")).digest != load(str(tmp_path / "c")).digest
    assert not caplog.messages
    made = import_published("hotpotqa", file, tmp_path / "d", sizes=parse_sizes("train=10, dev=5"))
    assert made.splits == {"train": 10, "dev": 5}
    assert caplog.messages == ["split sizes train=10,dev=5 leave out 15 of 30 questions"]
    made = import_published("hotpotqa", file, tmp_path / "e", sizes={"train": 1, "dev": 1})
    assert made.splits == {"train": 1, "dev": 1}
    thirds = divide(load(str(tmp_path / "a")).split("train"), {"train": 1 / 3, "dev": 1 / 3, "test": 1 / 3}, seed=0)
    assert len({question.id for questions in thirds.values() for question in questions}) == 24


BAD_ITEMS: dict[str, tuple[str, object, list[str]]] = {
    "no answer": ("hotpotqa", [{**HOTPOT, "answer": None}], ["item 1 (h1)", "'answer' is missing"]),
    "no id": ("hotpotqa", [HOTPOT, {**HOTPOT, "_id": None}], ["item 2", "'_id' is missing"]),
    "duplicate id": ("hotpotqa", [HOTPOT, HOTPOT], ["item 2 (h1)", "item 1 (h1)"]),
    "fact beyond the context": (
        "2wikimultihopqa",
        [{**HOTPOT, "supporting_facts": [["Mill", 0]]}],
        ["item 1 (h1)", "'supporting_facts' names 'Mill'", "distractor"],
    ),
    "context of another shape": (
        "hotpotqa",
        [{**HOTPOT, "context": {"title": [], "sentences": []}}],
        ["item 1 (h1)", "'context' must be a list"],
    ),
    "sentences that are text": (
        "hotpotqa",
        [{**HOTPOT, "context": [["Tower", "Tall."]]}],
        ["item 1 (h1)", "'context[0][1]' must be a list", "Tall."],
    ),
    "no supporting facts": ("hotpotqa", [{**HOTPOT, "supporting_facts": []}], ["'supporting_facts'", "at least one"]),
    "paragraphs missing": ("musique", [{**MUSIQUE, "paragraphs": None}], ["item 1 (2hop__12_34)", "'paragraphs'"]),
    "paragraph without text": (
        "musique",
        [{**MUSIQUE, "paragraphs": [{"idx": 0, "title": "T", "is_supporting": True}]}],
        ["'paragraphs[0].paragraph_text' is missing"],
    ),
    "hop without an answer": (
        "musique",
        [{**MUSIQUE, "question_decomposition": [{"question": "Who?"}]}],
        ["'question_decomposition[0].answer' is missing"],
    ),
    "another format": ("musique", [HOTPOT], ["item 1 (h1)", "'id' is missing"]),
    "an answer that is no list": ("nq", [{"question": "Who?", "answer": "Me"}], ["item 1", "'answer' must be a list"]),
    "an answer that is not yes or no": (
        "strategyqa",
        [{"qid": "s1", "question": "Is it?", "answer": "perhaps"}],
        ["item 1 (s1)", "'answer'"],
    ),
    "not objects": ("hotpotqa", ["h1"], ["item 1", "expected an object"]),
    "nothing": ("hotpotqa", [], ["no questions"]),
    "unanswerable only": ("musique", [{**MUSIQUE, "answerable": False}], ["no questions with an answer"]),
}


@pytest.mark.parametrize(("name", "items", "expected"), BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
def test_a_bad_item_is_named_and_nothing_is_written(tmp_path: Path, name: str, items: object, expected: list[str]):
    file = write(tmp_path / "in.json", items)
    assert_one_line(lambda: import_published(name, {"dev": file}, tmp_path / "out"), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]


def test_bad_files_and_options_are_named(tmp_path: Path):
    good = write(tmp_path / "good.json", [{**WIKI, "_id": str(number)} for number in range(5)])
    broken = tmp_path / "broken.json"
    broken.write_text('[{"_id": "a",\n]')
    chain = write_lines(tmp_path / "chain.jsonl", [{**CHAIN, "qa_pairs": [{"question": "Who?"}]}])
    clash = write(tmp_path / "clash.json", [{"id": "a", "text": "One."}, {"id": "a", "text": "Two."}])
    empty = write(tmp_path / "empty.json", [])
    nope = tmp_path / "nope.json"
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    wiki, out = "2wikimultihopqa", tmp_path / "out"

    cases: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: import_published("hotpot", good, out), ["'hotpot'", "did you mean 'hotpotqa'?", "musique"]),
        (lambda: import_published(wiki, tmp_path / "nope.json", out), ["nope.json", "cannot be read"]),
        (lambda: import_published(wiki, tmp_path, out), ["cannot be read"]),
        (lambda: import_published(wiki, broken, out), ["broken.json:2", "malformed JSON"]),
        (lambda: import_published(wiki, {"valid": good}, out), ["no split", "'valid'", "dev"]),
        (
            lambda: import_published(wiki, {"dev": good}, out, sizes={"test": 1}),
            ["'test'", "no file", "leave the size"],
        ),
        (lambda: import_published(wiki, {"dev": good, "test": good}, out), ["item 1 (0)", "stands at"]),
        (
            lambda: import_published("hotpotqa", good, out, decompositions=[chain]),
            ["decompositions", "2wikimultihopqa"],
        ),
        (lambda: import_published(wiki, good, out, decompositions=[chain]), ["chain.jsonl:1", "'qa_pairs[0].answer'"]),
        (lambda: import_published(wiki, good, out, corpus=clash), ["clash.json, item 2", "'a'", "unique"]),
        (lambda: import_published(wiki, good, out, corpus=empty), ["empty.json", "no passages"]),
        (lambda: import_published(wiki, good, full), ["full", "exists already"]),
        (lambda: import_published(wiki, good, out, sizes={"dve": 1}), ["'dve'", "did you mean 'dev'?"]),
        (lambda: import_published(wiki, good, out, sizes={"train": 5, "dev": 1}), ["train=5,dev=1", "5 questions"]),
        (lambda: import_published(wiki, good, out, sizes={"train": 0.9, "dev": 0.2}), ["train=0.9,dev=0.2", "lower"]),
        (lambda: import_published(wiki, good, out, sizes={"train": 2.5}), ["train=2.5", "all be"]),
        (lambda: import_published(wiki, good, out, sizes={"train": 0}), ["train=0", "above 0", "leave 'train' out"]),
        (lambda: import_published(wiki, good, out, sizes={"train": -1, "dev": 3}), ["train=-1", "above 0"]),
        (lambda: import_published(wiki, good, out, sizes={"train": 0.6, "dev": 0.01}), ["'dev'", "empty", "--sizes"]),
        (lambda: import_published(wiki, nope, out, sizes={"train": 0.9, "dev": 0.9}), ["0.9", "shares of more than"]),
        (lambda: import_published(wiki, {"dev+test": nope}, out, sizes={"dev": 2, "test": 0.5}), ["all be shares"]),
        (lambda: parse_sizes("train:3"), ["'train:3'", "train=0.8"]),
        (lambda: parse_sizes("train=3,train=4"), ["'train=3,train=4'", "twice"]),
    ]
    for call, expected in cases:
        assert_one_line(call, expected)
    assert not out.exists()
    assert (full / "notes").read_text() == "mine"


@needs_samples
@pytest.mark.parametrize(
    ("name", "file", "count", "types"),
    [
        ("hotpotqa", "hotpotqa/train_100.json", 100, {"bridge", "comparison"}),
        (
            "2wikimultihopqa",
            "2wikimultihopqa/train_500.json",
            500,
            {"compositional", "comparison", "bridge_comparison", "inference"},
        ),
        ("musique", "musique/train_100.jsonl", 100, {"2hop", "3hop1", "3hop2", "4hop1", "4hop3"}),
        ("strategyqa", "strategyqa/train_114.json", 114, set()),
        ("nq", "nq/open_100.jsonl", 100, set()),
        ("triviaqa", "triviaqa/open_100.jsonl", 100, set()),
    ],
)
def test_the_published_samples_import_whole(tmp_path: Path, name: str, file: str, count: int, types: set[str]):
    out = tmp_path / "out"
    import_published(name, SAMPLES / file, out)
    found = check(out)
    assert found.problems == []
    assert sum(split.questions for split in found.splits.values()) == count
    assert {type for split in found.splits.values() for type in split.types} == types
    data = load(str(out))
    if not data.corpus:
        return
    assert all(split.with_passages == split.questions for split in found.splits.values())
    supported = [q for questions in data.splits.values() for q in questions if q.answers[0] not in ("yes", "no")]
    held = [any(q.answers[0] in data.corpus[id].text + data.corpus[id].title for id in q.passages) for q in supported]
    assert sum(held) >= 0.9 * len(held)


@needs_samples
def test_the_published_decompositions_and_corpus_import(tmp_path: Path):
    out = tmp_path / "out"
    folder = SAMPLES / "2wikimultihopqa"
    made = import_published(
        "2wikimultihopqa",
        folder / "train_500.json",
        out,
        corpus=folder / "corpus_6119.json",
        decompositions=[folder / "train_500_decompositions.jsonl"],
    )
    assert made.decomposed == 500
    assert made.passages > 6119
    assert check(out).problems == []
    hops = [hop for question in load(str(out)).split("train") for hop in question.hops]
    assert sum(hop.passage is not None for hop in hops) / len(hops) > 0.95


def assert_one_line(call: Callable[[], object], expected: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in expected:
        assert part in message
