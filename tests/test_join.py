"""Several data sets as one, and one corpus as several."""

import json
from pathlib import Path

import pytest

from hoptimizer import UserError, Workbench, make_config
from hoptimizer.eval.datasets.dataset import check, load
from hoptimizer.eval.datasets.join import divide, join_folders

TOWNS = {"mill": ("Mill", "It lies in Wales."), "bath": ("Bath", "It lies in England.")}
RIVERS = {"mill": ("Mill", "A brook."), "bath": ("Bath", "It lies in England."), "wye": ("Wye", "A river.")}


def folder(path, passages):
    path.mkdir()
    rows = [{"id": id, "title": title, "text": text} for id, (title, text) in passages.items()]
    files = {"corpus": rows}
    for split, n in (("train", 5), ("dev", 2), ("test", 3)):
        hop = {"question": "Where is it?", "answer": "Wales", "passage": "mill"}
        asked = {"question": "Where?", "answers": ["Wales"], "passages": ["mill", "bath"], "hops": [hop]}
        files[split] = [{"id": f"{split}{number}", **asked} for number in range(n)]
    for name, lines in files.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(Path("towns"), TOWNS)
    folder(Path("rivers"), RIVERS)


def test_ids_are_told_apart_and_passages_of_the_same_text_are_one(two):
    joined = join_folders({"towns": 2, "rivers": None}, Path("both"), dev=1, seed=3)
    assert {split: len(questions) for split, questions in joined.splits.items()} == {"train": 7, "dev": 2, "test": 6}
    assert [passage.id for passage in joined.corpus] == ["mill", "bath", "rivers-mill", "wye"]
    of_rivers = joined.split("dev")[1]
    assert of_rivers.id == "rivers-dev0"
    assert of_rivers.passages == ["rivers-mill", "bath"]
    assert of_rivers.hops[0].passage == "rivers-mill"
    assert joined.corpus["rivers-mill"].text == "A brook."
    assert not check("both").problems
    assert load("both").splits == joined.splits


def test_the_draw_depends_on_the_seed_alone(two):
    drawn = [join_folders({"towns": 3, "rivers": 3}, Path(f"out{n}"), seed=n // 2).split("train") for n in range(4)]
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3] != drawn[0]


@pytest.mark.parametrize(
    ("sets", "says"),
    [({"towns": 9}, "has 5 questions in its 'train' split, not 9"), ({"towns": 1, "./towns": 1}, "rename")],
)
def test_what_cannot_be_joined_leaves_nothing(two, sets, says):
    with pytest.raises(UserError, match=says):
        join_folders(sets, Path("out"))
    assert not Path("out").exists()


def test_a_folder_with_something_in_it_is_kept(two):
    with pytest.raises(UserError, match="exists already"):
        join_folders({"towns": 1}, Path("rivers"))


def test_a_corpus_is_divided_in_its_order_into_parts_that_can_be_served(two, capsys):
    atlas = load("atlas")
    folders = divide(atlas, 7, Path("parts"))
    parts = [load(str(folder)).corpus for folder in folders]
    assert [passage for part in parts for passage in part] == list(atlas.corpus)
    assert {len(part) for part in parts} <= {len(atlas.corpus) // 7, len(atlas.corpus) // 7 + 1}
    assert Workbench(make_config({"data": str(folders[0]), "retriever": "bm25"})).retriever.search(["Where?"], 1)[0]
    with pytest.raises(UserError, match="parts: exists already"):
        divide(atlas, 2, Path("parts"))
    with pytest.raises(UserError, match=r"--parts 9: .* has 3 passages; give no more parts"):
        divide(load("rivers"), 9, Path("other"))
    assert not Path("other").exists()
