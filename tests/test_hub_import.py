"""Data sets of the hub: their columns are those of the published data sets, in folders that ``datasets`` reads."""

import json
import math
from pathlib import Path

import datasets
import huggingface_hub
import pyarrow
import pytest
from pyarrow import parquet
from test_importers import HOTPOT, MUSIQUE, WIKI, assert_one_line
from test_published_files import NQ, TRIVIA

from hoptimizer.cli import main
from hoptimizer.eval import check, load
from hoptimizer.eval.datasets import hub
from hoptimizer.eval.datasets.importers import import_published
from hoptimizer.eval.documents.importing import import_documents

PAIRS = {"title": [], "sentences": []}


def of_the_hub(item: dict) -> dict:
    """An item of HotpotQA as the hub has it."""
    titles, sentences = zip(*item["context"], strict=True)
    facts, places = zip(*item["supporting_facts"], strict=True)
    return {key: item[key] for key in ("question", "answer", "type")} | {
        "id": item["_id"],
        "supporting_facts": {"title": list(facts), "sent_id": list(places)},
        "context": {"title": list(titles), "sentences": list(sentences)},
    }


HUB_WIKI = of_the_hub(WIKI) | {"evidences": WIKI["evidences"]}
HUB_TRIVIA = {
    "question_id": "tc_33",
    "question": TRIVIA["Question"],
    "answer": {"value": "Rhine", "aliases": ["The Rhine"], "normalized_aliases": ["rhine"]},
    "entity_pages": {"title": ["Basel"], "filename": ["Basel.txt"], "wiki_context": ["Basel lies on the Rhine."]},
    "search_results": {"title": ["Oslo"], "filename": ["1.txt"], "search_context": ["Oslo lies on a fjord."]},
}
WORDS = NQ["document_text"].split()
HUB_NQ = {
    "id": "797803103760793766",
    "document": {
        "title": "Rhine",
        "url": "",
        "html": "",
        "tokens": {
            "token": WORDS,
            "is_html": ["<" in word for word in WORDS],
            "start_byte": [0] * len(WORDS),
            "end_byte": [0] * len(WORDS),
        },
    },
    "question": {"text": NQ["question_text"], "tokens": ["which"]},
    "long_answer_candidates": {"start_token": [0, 14], "end_token": [14, 21], "top_level": [True, True]},
    "annotations": {
        "id": ["1", "2"],
        "long_answer": [{"start_token": 0, "end_token": 14}, {"start_token": -1, "end_token": -1}],
        "short_answers": [
            {"start_token": [5], "end_token": [6], "text": ["Basel"]},
            {"start_token": [], "end_token": [], "text": []},
        ],
        "yes_no_answer": [-1, 1],
    },
}
STRATEGY = {"qid": "s1", "term": "Albany", "question": "Is it?", "answer": True, "facts": "Albany has 75,000 people."}
SETS = {
    "hotpotqa": (of_the_hub(HOTPOT), ["Lyon"], 2),
    "2wikimultihopqa": (HUB_WIKI, ["Lyon"], 2),
    "2wikimultihopqa as text": (
        {key: json.dumps(value) if isinstance(value, list) else value for key, value in WIKI.items()},
        ["Lyon"],
        2,
    ),
    "musique": (MUSIQUE, ["Lyon", "Lyons"], 2),
    "triviaqa": (HUB_TRIVIA, ["Rhine", "The Rhine"], 1),
    "nq": (HUB_NQ, ["Basel", "yes"], 1),
    "nq_open": ({"question": "Who?", "answer": ["I", "me"]}, ["I", "me"], 0),
    "strategyqa": (STRATEGY, ["yes", "true"], 1),
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def hub_folder(tmp_path: Path, **splits: list[dict]) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    for split, rows in splits.items():
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")
    return folder


@pytest.mark.parametrize(("row", "answers", "gold"), SETS.values(), ids=SETS.keys())
def test_the_columns_of_the_hub_become_a_published_format(tmp_path: Path, row: dict, answers: list[str], gold: int):
    folder = hub_folder(tmp_path, validation=[row])
    import_published(f"hub:{folder}", {"dev": "validation"}, tmp_path / "out")
    assert check(tmp_path / "out").problems == []
    data = load(str(tmp_path / "out"))
    [question] = data.split("dev")
    assert question.answers == answers
    assert len(question.passages) == gold
    if row is HUB_WIKI:
        assert [hop.answer for hop in question.hops] == ["Ines Moreau", "Lyon"]


@pytest.mark.parametrize("name", [name for name in SETS if name != "2wikimultihopqa as text"])
def test_a_parquet_file_of_the_hub_is_read_as_it_was_fetched(tmp_path: Path, name: str):
    row, answers, gold = SETS[name]
    file = hub_folder(tmp_path, validation=[row]) / "validation.parquet"
    import_published(name.removesuffix("_open"), {"dev": file}, tmp_path / "out")
    [question] = load(str(tmp_path / "out")).split("dev")
    assert (question.answers, len(question.passages)) == (answers, gold)


def test_a_data_set_is_strategyqa_by_yes_and_no(tmp_path: Path):
    folder = hub_folder(tmp_path, train=[{"qid": "1", "question": "Who?", "answer": "I"}])
    assert not hub.is_published(f"hub:{folder}")


def test_passages_of_the_hub_are_added_to_the_corpus(tmp_path: Path):
    passages = [{"id": n, "title": f"Lyon ({n})", "text": "A city on the Rhone.", "embeddings": [0.5]} for n in (1, 2)]
    folder = hub_folder(tmp_path, train=passages)
    questions = tmp_path / "nq.jsonl"
    questions.write_text(json.dumps({"question": "On which river is Lyon?", "answer": ["Rhone"]}) + "\n")
    made = import_published("nq", {"dev": questions}, tmp_path / "out", corpus=f"hub:{folder}")
    assert made.passages == 2
    assert [passage.title for passage in load(str(tmp_path / "out")).corpus] == ["Lyon (1)", "Lyon (2)"]
    (folder / "train.parquet").unlink()
    parquet.write_table(pyarrow.Table.from_pylist([{"words": "none"}]), folder / "train.parquet")
    call = lambda: import_published("nq", {"dev": questions}, tmp_path / "no", corpus=f"hub:{folder}")  # noqa: E731
    assert_one_line(call, [f"hub:{folder}, train row 1", "'text'"])
    assert not (tmp_path / "no").exists()


def test_splits_of_the_hub_become_ours_and_can_be_divided(tmp_path: Path):
    rows = [of_the_hub({**HOTPOT, "_id": f"h{n}", "question": f"Mill {n}?"}) for n in range(6)]
    bare = [{**row, "id": f"t{row['id']}", "answer": None} for row in rows[:1]]
    folder = hub_folder(tmp_path, train=rows[:2], validation=rows[2:], test=bare)
    made = import_published(f"hub:{folder}", None, tmp_path / "all")
    assert (made.splits, made.contexts) == ({"train": 2, "dev": 4}, 1)
    parts = {"train": "train", "dev+test": "validation"}
    made = import_published(f"hub:{folder}", parts, tmp_path / "divided", sizes={"dev": 1, "test": 3})
    assert made.splits == {"train": 2, "dev": 1, "test": 3}
    assert_one_line(
        lambda: import_published(f"hub:{folder}", {"dev": "valid"}, tmp_path / "c"), ["'valid'", "mean 'validation'?"]
    )


def test_no_split_of_the_hub_is_lost_without_a_word(tmp_path: Path, monkeypatch):
    def has(rows: list[dict], *splits: str) -> None:
        made = datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split in splits})
        monkeypatch.setattr(hub, "_load", lambda name: made)

    row, out = of_the_hub(HOTPOT), tmp_path / "out"
    has([row], "part_a", "part_b")
    for load_splits in (lambda: import_published("hub:a/b", None, out), lambda: import_documents("hub:a/b", None, out)):
        assert_one_line(load_splits, ["expected splits among train, validation", "got part_a, part_b"])
    has([row], "train", "validation", "dev")
    assert_one_line(lambda: import_published("hub:a/b", None, out), ["validation and dev would both be dev"])
    has([{**row, "id": f"h{n}", "question": f"Mill {n}?"} for n in range(10)], "auxiliary", "train")
    made = import_published("hub:a/b", None, out)
    assert (made.splits, made.splits_left_out) == ({"train": 8, "dev": 1, "test": 1}, ["auxiliary"])
    rows = [{"question": f"Mill {n}?", "answer": 1998.0} for n in range(10)]
    has([*rows, {"question": "Who?", "answer": math.nan}], "train", "holdout")
    call = lambda **options: import_documents("hub:a/b", None, tmp_path / "t", **options)  # noqa: E731
    assert_one_line(call, ["hub:a/b, train row 11", "'answer' must be an answer"])
    made = call(skip_bad=True)
    assert (made.splits, made.skipped, made.splits_left_out) == ({"train": 10}, 1, ["holdout"])


def test_a_split_of_the_hub_whose_answers_are_hidden_is_left_out_with_a_word(tmp_path: Path, monkeypatch):
    rows = [{"question": f"Mill {n}?", "answer": "1998"} for n in range(4)]
    hidden = [{"question": f"Ship {n}?", "answer": None} for n in range(4)]
    splits = {"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(hidden)}
    monkeypatch.setattr(hub, "_load", lambda name: splits)
    made = import_documents("hub:a/b", None, tmp_path / "out")
    assert (made.splits, made.splits_left_out) == ({"train": 4}, ["test"])
    misspelt = lambda: import_documents("hub:a/b", None, tmp_path / "c", answer="anser")  # noqa: E731
    assert_one_line(misspelt, ["hub:a/b, train", "no column 'anser'", "did you mean 'answer'?"])
    splits.pop("train")
    assert_one_line(lambda: import_documents("hub:a/b", None, tmp_path / "b"), ["no column 'answer'"])


@pytest.mark.parametrize(("asked", "right"), [("question", "answer"), ("query", "answers")])
def test_any_data_set_of_the_hub_with_questions_and_answers_is_imported_as_a_table(
    tmp_path: Path, monkeypatch, capsys, asked: str, right: str
):
    folder = hub_folder(
        tmp_path,
        train=[{asked: f"Mill {n}?", right: "1998"} for n in range(4)],
        validation=[{asked: f"Ship {n}?", right: "1997"} for n in range(4)],
    )

    def made(*words: str) -> dict[str, int]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        monkeypatch.setattr("sys.argv", ["hop", "data", "import", f"hub:{folder}", *words, "--out", str(out), "--json"])
        with pytest.raises(SystemExit, match="0"):
            main()
        return json.loads(capsys.readouterr().out)["splits"]

    assert made() == {"train": 4, "dev": 4}
    assert made("dev=validation") == {"dev": 4}
    assert made("train=train", "dev+test=validation", "--question-column", asked) == {"train": 4, "dev": 2, "test": 2}
    assert made("train", "--sizes", "train=3,dev=1") == {"train": 3, "dev": 1}
    assert_one_line(
        lambda: import_documents(f"hub:{folder}", None, tmp_path / "no", hub_splits={"dev": "valid"}),
        ["'valid'", "mean 'validation'?"],
    )


def test_what_is_wrong_with_a_data_set_of_the_hub_is_one_line(tmp_path: Path, monkeypatch):
    out = tmp_path / "out"
    call = lambda name, **options: import_published(name, None, out, **options)  # noqa: E731
    folder = hub_folder(tmp_path, train=[{"prompt": "Who?", "completion": "I"}])
    assert_one_line(lambda: call(f"hub:{folder}"), ["prompt, completion", "hotpotqa/hotpot_qa"])
    assert_one_line(lambda: call("hub:./nothing/here/at/all"), ["no folder and no name", "OWNER/NAME"])
    (folder / "train.parquet").write_bytes(b"PAR1 no")
    assert_one_line(lambda: call(f"hub:{folder}"), ["cannot be loaded"])
    (folder / "train.parquet").unlink()
    assert_one_line(lambda: call(f"hub:{folder}"), ["no data that can be read"])
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert_one_line(lambda: call("hub:hotpotqa/hotpot_qa:distractor"), ["the hub did not give it", "network"])
    assert not out.exists()


def test_a_bad_row_of_the_hub_is_named_by_its_split_and_can_be_skipped(tmp_path: Path):
    rows = [of_the_hub(HOTPOT), {**of_the_hub(HOTPOT), "id": "h2", "context": PAIRS}]
    folder = hub_folder(tmp_path, train=rows)
    splits = {"dev": "train"}
    assert_one_line(
        lambda: import_published(f"hub:{folder}", splits, tmp_path / "a"),
        [", train row 2", "'context'", "at least one"],
    )
    made = import_published(f"hub:{folder}", splits, tmp_path / "b", skip_bad=True)
    assert (made.splits, made.skipped) == ({"dev": 1}, 1)


def test_a_test_split_without_answers_is_none_of_questions(tmp_path: Path):
    untold = HUB_TRIVIA | {"question_id": "tc_34", "answer": {"value": "<unk>", "aliases": []}}
    folder = hub_folder(tmp_path, validation=[HUB_TRIVIA], test=[untold])
    made = import_published(f"hub:{folder}", None, tmp_path / "out")
    assert made.splits == {"dev": 1}
    assert_one_line(
        lambda: import_published(f"hub:{folder}", {"dev": "test"}, tmp_path / "b"), ["no questions with an answer"]
    )


def test_an_answer_of_signs_is_found_in_the_page_that_states_it(tmp_path: Path):
    row = HUB_TRIVIA | {"answer": {"value": "Oliver!", "aliases": []}}
    row["entity_pages"] = {"title": ["Musicals", "Twist"], "filename": ["1", "2"]}
    row["entity_pages"]["wiki_context"] = ["It was called Oliver! in London.", "A book about Oliver the boy."]
    import_published(f"hub:{hub_folder(tmp_path, validation=[row])}", {"dev": "validation"}, tmp_path / "out")
    data = load(str(tmp_path / "out"))
    assert [data.corpus[id].title for id in data.split("dev")[0].passages] == ["Musicals"]
