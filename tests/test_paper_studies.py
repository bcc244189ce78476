"""The studies that make the papers' tables can start, on data of the size that they ask for."""

import json
from pathlib import Path

import pytest

from hoptimizer import UserError, load_study, make_config
from hoptimizer.workbench import Workbench

FILES = sorted((Path(__file__).parents[1] / "configs" / "papers").glob("*.yaml"))
# Folders that users import; studies of a transfer name them.
FOLDERS = ("hotpotqa", "2wiki", "musique")


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A folder with data sets that have as many questions as the studies use."""
    parent = tmp_path_factory.mktemp("data")
    for name in FOLDERS:
        folder = parent / name
        folder.mkdir()
        passage = {"id": "p", "title": name, "text": "It lies on the Rhine."}
        (folder / "corpus.jsonl").write_text(json.dumps(passage) + "\n")
        for split, size in (("train", 20), ("dev", 100), ("test", 500)):
            rows = [
                {"id": f"{split}{n}", "question": f"Where is {n}?", "answers": ["Rhine"], "passages": ["p"]}
                for n in range(size)
            ]
            (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return parent


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_study_of_a_paper_can_start(file, imported, monkeypatch, caplog):
    monkeypatch.chdir(imported)
    study = load_study(file, [] if "transfer" in file.stem else ["data.name=hotpotqa"])
    assert study.cells
    assert {cell.split for cell in study.cells} == {"test"}
    assert not any(set(cell.options) & set(cell.place) for cell in study.cells)
    assert caplog.messages == [], "it says what it means"


def test_what_a_module_of_ra_isf_is_worth_is_tested_against_the_whole_method():
    study = load_study(FILES[0].with_name("ra_isf-ablations.yaml"), only=["RA-ISF", "No SKM"])
    assert study.file.baseline == {"name": "RA-ISF"}


def test_a_system_is_the_same_in_efficient_rags_tables_of_recall_and_of_time(imported, monkeypatch):
    monkeypatch.chdir(imported)
    programs = [
        {
            cell.name: cell.config.program
            for cell in load_study(FILES[0].with_name(f"efficient_rag-{table}.yaml"), ["data.name=hotpotqa"]).cells
        }
        for table in ("systems", "latency")
    ]
    shared = programs[0].keys() & programs[1].keys()
    assert shared == {"Direct", "Iter-RetGen iter3", "SelfASK", "EfficientRAG"}
    assert [name for name in shared if programs[0][name] != programs[1][name]] == []


def test_ircots_protocol_chooses_k_and_m_with_the_first_demonstrations(imported, monkeypatch):
    monkeypatch.chdir(imported)
    study = load_study(FILES[0].with_name("ircot-recall.yaml"), ["data.name=hotpotqa"])
    assert len(study.candidates) == 6 + 4 * 3
    assert {(cell.config.seed, cell.split, cell.n) for cell in study.candidates} == {(1, "dev", 100)}
    assert study.seeds == [1, 2, 3]


def test_ircots_transfer_chooses_for_each_pair_of_data_sets_on_dev_of_the_one_that_is_asked(imported, monkeypatch):
    monkeypatch.chdir(imported)
    study = load_study(FILES[0].with_name("ircot-transfer-recall.yaml"))
    assert len(study.candidates) == 9 * (6 + 4 * 3)
    moved = [cell for cell in study.candidates if cell.source]
    assert len(moved) == 6 * 4 * 3, "the demonstrations of a data set itself are compiled as they are scored"
    assert len({cell.source.digest for cell in moved}) == 3 * 4 * 3, "once for both of the others"
    for cell in moved:
        source, target = (Path(config.data.name).name for config in (cell.source.config, cell.config))
        assert (source, target) == (cell.place["compile.data.name"], cell.place["data.name"])
        assert (cell.split, cell.source.split) == ("dev", "dev")
        assert cell.source.config.k == cell.config.k
        assert cell.source.config.optimizer == cell.config.optimizer


def test_an_oracle_gives_the_supporting_passages_alone_or_among_others():
    base = {"data": {"name": "atlas", "dev": 3}, "program": {"name": "rag", "reader": "none"}}
    question = Workbench(make_config(base)).data.split("dev")[0]
    found = {}
    for others in (0, 4):
        bench = Workbench(make_config(base | {"retriever": {"name": "oracle", "others": others, "k": 10}}))
        [found[others]] = bench.retriever.search([question.question], k=10)
    assert [passage.id for passage in found[0]] == question.passages
    assert len(found[4]) == len(question.passages) + 4
    assert {passage.id for passage in found[4] if passage.score} == set(question.passages)
    [other] = bench.retriever.search(["Which city lies on the Vistula?"], k=2)
    assert len(other) == 2
    assert bench.retriever.search([question.question], k=10)[0] == found[4], "in the same order each time"


def test_an_oracle_needs_questions_that_name_their_passages(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "p", "title": "", "text": "A river."}) + "\n")
    (tmp_path / "dev.jsonl").write_text(json.dumps({"id": "1", "question": "Which?", "answers": ["x"]}) + "\n")
    bench = Workbench(make_config({"data": str(tmp_path), "program": "rag", "retriever": "oracle"}))
    with pytest.raises(UserError, match="no question that names supporting passages"):
        _ = bench.retriever
