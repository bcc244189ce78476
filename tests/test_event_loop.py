"""Every public function works where an event loop runs already, as in a notebook or a server."""

import asyncio
import re
import signal
import threading
import time
from pathlib import Path

import mlflow
import pytest

from hoptimizer import (
    Tracker,
    answer_all,
    compare_variants,
    compile_variant,
    estimate_study,
    evaluate_variant,
    load_config,
    load_study,
    load_variant,
    run_study,
)
from hoptimizer.common.concurrency import all_of, beside, run_async
from hoptimizer.common.errors import UserError

ROOT = Path(__file__).parents[1]
ROOMS = ("common", "signatures", "models", "retrieval", "programs", "eval", "optimizers", "core")
WORDS = ["data=atlas", "data.train=4", "data.dev=2", "program=rag", "retriever=bm25", "lm.default.max_tokens=8"]


def test_a_variant_is_made_scored_compared_loaded_and_served_inside_a_loop(store):
    uri = f"sqlite:///{store}/mlflow.db"
    config = load_config(None, [*WORDS, "optimizer=bootstrap_few_shot", f"tracking.uri={uri}"])
    (store / "study.yaml").write_text(
        f"base: {{data: atlas, tracking: {{uri: '{uri}'}}}}\ngrid: {{retriever.k: [1]}}\n"
    )

    async def cell():
        compiled = compile_variant(config)
        scored = evaluate_variant(config)
        runs = [scored.run_id, compiled.run_id]
        assert len(compare_variants(Tracker(uri, config.experiment), runs).differences) == 1
        row = compiled.after.rows[0]
        source, question = f"runs:/{compiled.run_id}", row.question.question
        program = load_variant(source, tracking_uri=uri)
        mlflow.set_tracking_uri(uri)
        [model] = mlflow.get_run(compiled.run_id).outputs.model_outputs
        answers = [
            program(question=question).answer,
            (await program.acall(question=question)).answer,
            answer_all(program, [question])[0]["answer"],
            mlflow.pyfunc.load_model(f"models:/{model.model_id}").predict([question])[0]["answer"],
        ]
        study = load_study(store / "study.yaml", [*WORDS, "program.reader=none"])
        assert estimate_study(study).as_dict()
        assert not run_study(study).failed
        return answers, row.answer

    answers, expected = asyncio.run(cell())
    assert answers == [expected] * 4


def test_one_place_alone_starts_a_loop():
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    starting = re.compile(r"\basyncio\.(run|Runner)\b|\brun_until_complete\(")
    found = [str(path.relative_to(ROOT)) for path in files if starting.search(path.read_text(encoding="utf-8"))]
    assert found == ["common/concurrency.py"], "use run_async, which works in a notebook too"


@pytest.mark.usefixtures("_no_collection")
def test_a_second_interruption_does_not_wait_for_what_is_left():
    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(5)  # whatever takes its time to end

    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def interrupted_twice():
        with beside() as loop:
            ended = asyncio.run_coroutine_threadsafe(work(), loop)
            for seconds in (0.2, 0.6):
                threading.Timer(seconds, interrupt).start()
            ended.result()

    start = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_twice()
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 5


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("place", ["a script", "a loop", "a notebook"])
def test_an_interruption_cancels_the_work(place):
    ended = []

    async def work():
        threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def cell():
        if place == "a notebook":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel sets it while a cell runs
        run_async(work())

    start = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_async(work()) if place == "a script" else asyncio.run(cell())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["cancelled"]
    assert time.monotonic() - start < 30


def test_what_fails_among_others_rises_with_its_cause():
    async def failing():
        raise ValueError("no answer") from UserError("no such model")

    with pytest.raises(ValueError, match="no answer") as raised:
        run_async(all_of([failing(), asyncio.sleep(60)]))
    assert str(raised.value.__cause__) == "no such model"
