"""Import cost: the command line, the package's face and the faces that settings are read from stay light."""

import json
import os
import subprocess
import sys

import pytest
from chat_server import ChatServer

HEAVY = ("torch", "transformers", "dspy", "mlflow", "colbert", "pandas", "matplotlib", "scipy", "litellm")


FACES = ("", ".cli.app", ".models", ".retrieval", ".config", ".programs", ".optimizers")


@pytest.mark.parametrize("statement", [f"import hoptimizer{face}" for face in FACES])
def test_nothing_heavy_is_imported(statement):
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_mistake_in_a_config_is_said_before_what_is_slow_to_import(tmp_path):
    """Not even DSPy: programs and optimizers are imported when their options are read."""
    code = (
        "import sys; from hoptimizer.cli import main; sys.argv = ['hop', 'eval', 'data=atlas', 'program=ircott']\n"
        f"try: main()\nfinally: print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stdout.strip()) == (2, "[]")
    assert "did you mean 'ircot'?" in result.stderr


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        (["eval", "data.dev=2"], ["torch", "boto3"]),
        (["ask", "Where is Lyon?"], ["torch", "mlflow", "pandas", "matplotlib"]),
    ],
    ids=["eval", "ask"],
)
def test_a_served_model_and_bm25_need_no_torch_and_an_answer_no_store(tmp_path, words, spared):
    answer = "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"
    with ChatServer(answer=lambda _: answer) as server:
        words = [*words, "data=atlas", "program=rag", "retriever=bm25", "lm.default=openai/scripted"]
        words += [f"lm.default.api_base={server.url}", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", "--json"]
        code = (
            f"import sys; from hoptimizer.cli import main; sys.argv = ['hop', *{words!r}]\n"
            f"try: main()\nfinally: print([name for name in {spared!r} if name in sys.modules], file=sys.stderr)"
        )
        environment = os.environ | {"HOPTIMIZER_HOME": str(tmp_path / "home"), "OPENAI_API_KEY": "none"}
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
    assert json.loads(result.stdout), result.stderr
    assert result.stderr.splitlines()[-1] == "[]"
