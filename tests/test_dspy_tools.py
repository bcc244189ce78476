"""DSPy's own tools work on our programs: Evaluate, Parallel, streaming, save and load, MLflow's autolog."""

import asyncio
import re
from pathlib import Path

import dspy
import mlflow
import pytest
from chat_server import ChatServer
from dspy.utils import DummyLM
from mlflow.entities import SpanType
from scripted import ScriptedRetriever, passage

from hoptimizer import CompiledProgram, Workbench, load_config
from hoptimizer.programs import RAG

ROOT = Path(__file__).parents[1]
QUESTIONS = [f"Question {n}?" for n in range(6)]
ROOMS = ("common", "signatures", "models", "retrieval", "programs", "eval", "optimizers", "core")


@pytest.fixture
def program():
    """A program over a scripted retriever, and a scripted language model that always says Lyon."""
    retriever = ScriptedRetriever({question: [passage("gold")] for question in QUESTIONS})
    lm = DummyLM([{"answer": "Lyon"}] * 40)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        yield RAG(retriever, k=1, reader="direct")


def examples():
    return [
        dspy.Example(question=question, answer="Lyon", answers=["Lyon"]).with_inputs("question")
        for question in QUESTIONS
    ]


def test_evaluate(program):
    result = dspy.Evaluate(devset=examples(), metric=lambda e, p: float(p.answer == e.answer), num_threads=2)(program)
    assert result.score == 100
    assert {len(prediction.steps) for _, prediction, _ in result.results} == {2}


def test_parallel(program):
    predictions = dspy.Parallel(num_threads=2, disable_progress_bar=True)([(program, e) for e in examples()])
    assert [prediction.answer for prediction in predictions] == ["Lyon"] * 6
    assert [[p.id for p in prediction.passages] for prediction in predictions] == [["gold"]] * 6


def test_save_and_load(program, tmp_path):
    program.reader.demos = [dspy.Example(context=["A"], question="B?", answer="C")]
    program.save(tmp_path / "program.json")
    again = RAG(program.retriever, k=1, reader="direct")
    again.load(tmp_path / "program.json")
    assert again.dump_state() == program.dump_state()
    assert again(question=QUESTIONS[0]).answer == "Lyon"


class Steps(dspy.streaming.StatusMessageProvider):
    """Tells when a step begins."""

    def lm_start_status_message(self, instance, inputs):
        return "asking"


def test_streamify_tells_of_steps_and_ends_with_the_answer(program):
    stream = dspy.streamify(program, status_message_provider=Steps(), is_async_program=True)

    async def received():
        return [value async for value in stream(question=QUESTIONS[0])]

    values = asyncio.run(asyncio.wait_for(received(), 60))
    assert "asking" in [value.message for value in values if isinstance(value, dspy.streaming.StatusMessage)]
    assert values[-1].answer == "Lyon"


CHAT = "[[ ## answer ## ]]\nThe old harbour of Lyon\n\n[[ ## completed ## ]]"
JSON = '{"answer": "The old harbour of Lyon"}'


@pytest.mark.parametrize(
    ("settings", "said", "listening", "streams"),
    [
        ("", CHAT, None, True),
        ("prompt_format=json structured_outputs=true", JSON, None, False),
        ("prompt_format=json structured_outputs=true", JSON, dspy.JSONAdapter(), True),
    ],
)
def test_streamify_gives_the_answer_of_a_served_model_in_pieces(settings, said, listening, streams):
    words = ["data=atlas", "program=rag", "retriever=bm25", "lm.default.model=openai/gpt-x", "lm.default.cache=false"]
    words += [f"lm.default.{word}" for word in settings.split()]
    with ChatServer(lambda body: said) as server:
        bench = Workbench(load_config(None, [*words, f"lm.default.api_base={server.url}"]))
        program = CompiledProgram(bench, bench.program())
        listener = dspy.streaming.StreamListener("answer", predict=program.program.reader, predict_name="reader")
        stream = dspy.streamify(program, stream_listeners=[listener], is_async_program=True)

        async def received():
            with dspy.context(adapter=listening):
                return [value async for value in stream(question="What is old?")]

        *pieces, last = asyncio.run(asyncio.wait_for(received(), 60))
    assert server.bodies[0]["stream"]
    assert last.answer == "The old harbour of Lyon"
    assert "".join(piece.chunk for piece in pieces).strip(' "') == (last.answer if streams else "")
    assert (len(pieces) > 1) == streams


def test_autolog_keeps_a_trace_with_the_steps_of_a_question(tmp_path):
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/autolog.db")
    mlflow.dspy.autolog()
    try:
        experiment = mlflow.set_experiment("autolog")
        with dspy.context(lm=DummyLM([{"answer": "Lyon"}]), adapter=dspy.ChatAdapter()):
            RAG(ScriptedRetriever({QUESTIONS[0]: [passage("gold")]}), k=1, reader="direct")(question=QUESTIONS[0])
        mlflow.flush_trace_async_logging()
        [trace] = mlflow.search_traces(locations=[experiment.experiment_id], return_type="list")
    finally:
        mlflow.dspy.autolog(disable=True)
        mlflow.set_tracking_uri(before)
    names = [span.name for span in trace.data.spans]
    assert names[0] == "RAG.forward"
    assert "Predict.forward" in names
    [search] = [span for span in trace.data.spans if span.span_type == SpanType.RETRIEVER]
    assert (search.parent_id, search.inputs["query"]) == (trace.data.spans[0].span_id, QUESTIONS[0])
    assert [document["page_content"] for document in search.outputs] == [passage("gold").text]


# What DSPy 3.5 removes, or has announced to: the deprecated base class's own forward, LiteLLM as a necessity.
REMOVED = re.compile(
    r"^\s*(?:from|import) (?:litellm|dspy\.(?:clients\.lm_local|teleprompt\.teleprompt|dsp)\b)", re.MULTILINE
)


def test_nothing_is_imported_that_the_next_dspy_removes():
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    assert [str(path.relative_to(ROOT)) for path in files if REMOVED.search(path.read_text(encoding="utf-8"))] == []


# The modules of DSPy's that are no public face of it. Each one more is a place where its next version may break us.
INTERNALS = {
    "adapters.utils",
    "clients",
    "clients.base_lm",
    "clients.cache",
    "clients.call_result",
    "clients.capabilities",
    "clients.disk_serialization",
    "clients.engines.base",
    "clients.model_metadata",  # the list of prices, without which a dry run would need LiteLLM
    "clients.openai",
    "clients.provider",
    "clients.utils_finetune",
    "lm15",  # its client of OpenAI's protocol, which is patched to read failures wherever they are said
    "teleprompt.gepa",
    "teleprompt.infer_rules",
    "utils.callback",
    "utils.exceptions",
}


def test_no_more_of_dspys_internals_is_imported_than_is_known():
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    imports = re.compile(r"^\s*(?:from|import) dspy\.([\w.]+)", re.MULTILINE)
    assert {name for path in files for name in imports.findall(path.read_text(encoding="utf-8"))} == INTERNALS


def test_the_adapter_is_chosen_by_us_and_not_by_dspys_default():
    from hoptimizer.models import build_adapter

    assert type(build_adapter()).__module__.startswith("hoptimizer.")
