"""Nothing that a command writes holds a key: every byte is searched, in compressed files too."""

import gzip
import io
import os
import subprocess
import sys
import threading
import zipfile
from base64 import b64encode
from pathlib import Path

import psutil
import pytest
from chat_server import ChatServer

HOP = Path(sys.executable).with_name("hop")
SECRETS = {
    "key": "sk-canary-7f3a91",
    "header": "canary-header-5d2c",
    "password": "canary-password-88e1",
    "query": "canary-query-c04b",
    "body": "canary-body-19ac",
    "environment": "sk-canary-env-3b7d",
    "retriever": "canary-retriever-6e55",
}
SECRETS["basic authentication"] = b64encode(f"team:{SECRETS['password']}".encode()).decode()


class EchoServer(ChatServer):
    """A server that repeats in its errors all that it was sent."""

    def complete(self, body):
        """The number of a call, and the status and the body of its answer."""
        self.error = f"refused: {body} {self.headers[-1]}"
        return super().complete(body)


def everything(folder):
    """Each file's bytes under its path, and those of what is packed in it."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield from opened(str(path), path.read_bytes())


def opened(name, content):
    yield name, content
    if content[:2] == b"\x1f\x8b":
        yield from opened(f"{name}!", gzip.decompress(content))
    elif content[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from opened(f"{name}!{member}", archive.read(member))


class Place:
    """A folder where commands run, with a home and a place for temporary files of its own.

    Args:
        folder: an empty one.
        server: that is asked.
    """

    def __init__(self, folder, server):
        self.work, given = folder / "work", folder / "given"
        for path in (self.work, given, folder / "work" / "home", folder / "work" / "tmp"):
            path.mkdir(exist_ok=True)
        address = server.url.removeprefix("http://")
        self.config = given / "config.yaml"
        self.config.write_text(
            f"""
data: {{name: atlas, train: 8, dev: 4, test: 2}}
program: rag
retriever: bm25
lm:
  default:
    model: openai/some-model
    api_base: "http://team:${{oc.env:TEAM_PASSWORD}}@{address}"
    api_key: ${{oc.env:TEAM_KEY}}
    num_retries: 0
    extra_headers: {{X-Team: {SECRETS["header"]}}}
    extra_body: {{team: {{token: {SECRETS["body"]}}}}}
  reflection: {{model: openai/another-model, api_base: "{server.url}"}}
optimizer: {{name: bootstrap_random_search, num_candidate_programs: 1, max_bootstrapped_demos: 1}}
"""
        )
        self.study = given / "study.yaml"
        self.study.write_text(
            f"""
base: {{data: {{name: atlas, dev: 2}}, program: direct}}
at_once: 1  # the server repeats what it was sent last, whoever asked
grid:
  lm.default:
    - model: openai/one
      api_base: "{server.url}"
      api_key: {SECRETS["key"]}
      extra_body: {{token: {SECRETS["body"]}}}
    - model: openai/two
      api_base: "http://u:{SECRETS["password"]}@{address}"
      extra_headers: {{X: {SECRETS["header"]}}}
    - {{model: openai/three, api_base: "{server.url}"}}
"""
        )
        kept = Path(os.environ.get("HOPTIMIZER_HOME", Path.home() / ".cache" / "hoptimizer"))
        (self.work / "home" / "checkpoints").symlink_to(kept / "checkpoints")
        self.environment = os.environ | {
            "HOPTIMIZER_HOME": str(self.work / "home"),
            "HOME": str(self.work / "home"),
            "TMPDIR": str(self.work / "tmp"),
            "TEAM_KEY": SECRETS["key"],
            "TEAM_PASSWORD": SECRETS["password"],
            "OPENAI_API_KEY": SECRETS["environment"],
        }
        self.arguments = set()

    def hop(self, *words):
        """A command's exit code and what it printed; what its children were started with is kept."""
        process = subprocess.Popen(
            [str(HOP), *map(str, words)],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(process.pid, ended))
        watcher.start()
        printed, _ = process.communicate(timeout=300)
        ended.set()
        watcher.join()
        return process.returncode, printed

    def _watch(self, number, ended):
        while not ended.wait(0.05):
            try:
                children = psutil.Process(number).children(recursive=True)
                self.arguments.update(argument for child in children for argument in child.cmdline())
            except psutil.NoSuchProcess:
                continue


def found(place, *printed):
    """Where a secret is."""
    texts = [("printed", text.encode()) for text in printed]
    texts += [("arguments of children", " ".join(place.arguments).encode()), *everything(place.work)]
    return [(name, where) for where, content in texts for name, secret in SECRETS.items() if secret.encode() in content]


@pytest.fixture
def place(tmp_path):
    with EchoServer(lambda _: "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]") as server:
        place = Place(tmp_path, server)
        place.server = server
        yield place


def test_a_compile_an_evaluation_and_a_comparison_keep_no_secret(place):
    printed = [
        place.hop("compile", place.config, "--split", "test"),
        place.hop("compare", "data=atlas", "--split", "test"),
    ]
    printed.append(place.hop("ask", "Where is it?", place.config))
    assert [code for code, _ in printed] == [0, 0, 0], printed
    assert {"x-team", "authorization"} <= place.server.headers[-1].keys(), "the server was given them"
    assert not found(place, *(text for _, text in printed))


def test_a_study_keeps_no_secret(place):
    code, printed = place.hop("study", place.study)
    assert code == 0, printed
    assert not found(place, printed)


def test_what_fails_shows_no_secret(place):
    place.server.failing, place.server.status = 10**6, 401
    retriever = f"retriever.url=http://u:{SECRETS['retriever']}@127.0.0.1:9/search?token={SECRETS['query']}"
    store = f"tracking.uri=http://u:{SECRETS['password']}@127.0.0.1:9"
    printed = [
        place.hop("compile", place.config),
        place.hop("eval", place.config, f"lm.default.api_key=[{SECRETS['key']}]"),
        place.hop("eval", place.config, f"lm.default.api_base=http://u:{SECRETS['password']}@127.0.0.1:9"),
        place.hop("eval", place.config, f"lm.default.api_base=http://127.0.0.1:9?key={SECRETS['query']}"),
        place.hop("index", "search", "x", "data=atlas", retriever),
        place.hop("eval", place.config, store),
        place.hop("sync", store),
        place.hop("study", place.study),
    ]
    assert [code for code, _ in printed] == [2, 2, 1, 2, 1, 2, 1, 1], printed
    _, examined = place.hop("doctor", place.config, store)
    assert not found(place, examined, *(text for _, text in printed))
