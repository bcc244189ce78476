"""``executor: ray`` while a program is compiled: workers answer as this process' language models do."""

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from test_ray import ScriptedRay

from hoptimizer import UserError, compile_variant, load_config
from hoptimizer.executors.elsewhere import language_models_of
from hoptimizer.executors.lm_worker import LMWorker, Untakable
from hoptimizer.executors.pool import Pool, Workers
from hoptimizer.executors.settings import InProcess, RayExecutor
from hoptimizer.executors.task import Node, Refusal
from hoptimizer.models import LMSettings, build_lm
from hoptimizer.models.engine import engine
from hoptimizer.models.engine.calls import answered_by

SMALL = "local/smollm2-135m-instruct"


def sent(value):
    """As it comes out in another process."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - what was pickled here


def by_worker(answered):
    """Calls go through a worker, as they would through Ray: pickled, and in an event loop of its own."""
    worker = LMWorker()
    threads = ThreadPoolExecutor(8)

    def answer(call):
        outcome = sent(asyncio.run(worker.answer(sent(call))))
        answered.append(outcome)
        if isinstance(outcome, Untakable):
            raise outcome.error
        return outcome

    return answered_by(lambda call: threads.submit(answer, call))


def both(ask):
    """What a language model of this process gives, and the same by a worker."""
    here, answered = ask(), []
    with by_worker(answered):
        there = ask()
    assert answered
    return here, there


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.9, "n": 3},
        {"temperature": 0.9, "rollout_id": 5},
        {"temperature": 0.0, "logprobs": True},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["likeliest", "candidates", "rollout", "logprobs", "object"],
)
def test_a_worker_writes_what_this_process_writes(options):
    lm = build_lm(LMSettings(model=SMALL, max_tokens=12, cache=False))
    here, there = both(lambda: lm("Name a city in Norway.", **options))
    assert here == there
    if options.get("n"):
        assert len(set(here)) > 1


def test_asynchronous_calls_are_answered_by_workers_too():
    lm = build_lm(LMSettings(model=SMALL, max_tokens=6, cache=False))
    here, there = both(lambda: asyncio.run(lm.acall("Name a city in Norway.")))
    assert here == there


def test_what_the_model_can_not_take_is_the_same_error():
    lm = build_lm(LMSettings(model=SMALL, max_tokens=6, cache=False))

    def error(**words):
        with pytest.raises(dspy.LMError) as raised:
            lm("word " * 9000 if not words else "x", **words)
        return type(raised.value), str(raised.value)

    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]}
    for words in ({}, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}):
        here, there = both(lambda words=words: error(**words))
        assert here == there


def test_a_worker_without_the_weights_or_with_other_versions_says_so(tmp_path):
    lm = build_lm(LMSettings(model=f"local/{tmp_path}/gone", cache=False))
    calls = []
    with (
        answered_by(lambda call: calls.append(call) or ThreadPoolExecutor(1).submit(lambda: 1 / 0)),
        pytest.raises(dspy.LMError),
    ):
        lm("x")
    refusal = asyncio.run(LMWorker().answer(calls[0]))
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith(f"can't load '{tmp_path}/gone' as a language model: ")
    assert asyncio.run(LMWorker().start(Node({"torch": "1.0"}))).message.startswith("it has torch ")
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"the driver's")
    node = Node.for_models([str(folder), "smollm2-135m-instruct"])
    assert asyncio.run(LMWorker().start(node)) is None
    (folder / "model.safetensors").write_bytes(b"an older one")
    told = asyncio.run(LMWorker().start(node)).message
    assert told.startswith(f"lm: a folder of {folder}, smollm2-135m-instruct holds other files than the driver's")


def test_only_a_cluster_answers_elsewhere():
    with language_models_of(InProcess(name="in_process"), [], 4):
        assert engine.elsewhere() is None


def pool_of(answer, size, share):
    ray = ScriptedRay(answer)
    return Pool(Workers(ray, RayExecutor(name="ray", tasks=size), LMWorker), size, ({}, None), share)


def test_what_comes_at_once_is_shared_out_evenly():
    asked = []

    async def answer(number):
        await asyncio.sleep(0.2)
        asked.append(number)
        return number

    async def ask_four():
        async with pool_of(lambda number, _: answer(number), 2, share=8) as pool:
            await asyncio.sleep(0.1)  # both are up
            await asyncio.gather(*(pool.ask(one) for one in range(4)))

    asyncio.run(ask_four())
    assert sorted(asked) == [0, 0, 1, 1]


def test_a_call_that_is_given_up_leaves_its_place_to_the_next():
    async def ask_twice():
        async with pool_of(lambda _, asked: asyncio.sleep(60) if asked == "slow" else asked, 1, share=1) as pool:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pool.ask("slow"), 0.2)
            return await asyncio.wait_for(pool.ask("quick"), 5)

    assert asyncio.run(ask_twice()) == "quick"


def test_a_cluster_that_is_out_of_reach_ends_a_compile_before_anything_is_asked(tmp_path):
    pytest.importorskip("ray")
    words = ["data={name: atlas, train: 2, dev: 2}", "program=direct", "optimizer=labeled_few_shot"]
    store = f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"
    config = load_config(None, [*words, store, "executor={name: ray, address: '127.0.0.1:9'}"])
    with pytest.raises(UserError, match="no Ray cluster can be reached"):
        compile_variant(config)
