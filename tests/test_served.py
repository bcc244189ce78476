"""Settings of language models behind a server, over real connections."""

import asyncio
import copy
import gc
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from chat_server import ChatServer
from dspy.utils.exceptions import (
    ContextWindowExceededError,
    LMAuthError,
    LMError,
    LMInvalidRequestError,
    LMRateLimitError,
    LMServerError,
    LMTimeoutError,
)
from pydantic import BaseModel, ValidationError

from hoptimizer import Workbench, evaluate_variant, load_config
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.eval import Question, evaluate
from hoptimizer.models import LMSettings, build_adapter, build_lm, check_lm, same_calls
from hoptimizer.models.adapters import LMAdapter
from hoptimizer.models.failures import is_outage, is_permanent, one_line
from hoptimizer.models.same_calls import after_the_same
from hoptimizer.models.slots import CONNECTIONS, Slots
from hoptimizer.models.usage import AnswerCache
from hoptimizer.programs import Direct

TOKEN = "token-of-the-team"
QUESTIONS = [Question(id=str(n), question=f"Where is {n}?", answers=["Lyon"]) for n in range(8)]
ANSWER = "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]"


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch):
    cache = dspy.clients.cache.Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
    monkeypatch.setattr(dspy, "cache", cache)


def uri(folder):
    return f"sqlite:///{folder}/mlflow.db"


def served(server, **settings):
    return LMSettings(model="openai/some-model", api_base=server.url, **settings)


def answers(lm, questions=QUESTIONS, **options):
    with dspy.context(lm=lm, adapter=build_adapter()):
        return evaluate(Direct(), questions, **options)


def test_what_decides_on_an_answer_is_sent_with_each_call():
    body = {"repetition_penalty": 1.1, "chat_template_kwargs": {"enable_thinking": False}}
    with ChatServer() as server:
        build_lm(served(server, top_p=0.5, reasoning_effort="low", seed=3))("Where?")
        build_lm(served(server, top_p=0.5, reasoning_effort="none", extra_body=body))("Where?")
    first, second = server.bodies
    assert (first["top_p"], first["reasoning_effort"], first["seed"]) == (0.5, "low", 3)
    assert {**second, **body, "top_p": 0.5, "reasoning_effort": "none"} == second


def test_each_sample_is_asked_for_with_a_seed_of_its_own():
    def seeds(**settings):
        with ChatServer() as server:
            lm = build_lm(served(server, temperature=1.0, cache=False, **settings))
            for rollout in (None, 0, 1, 2):
                lm("Where?", rollout_id=rollout)
                asyncio.run(lm.acall("Where?", rollout_id=rollout))
            lm.copy(rollout_id=2)("Where?")
        return [body.get("seed") for body in server.bodies]

    seven = seeds(seed=7)
    assert seven[:4] == [7] * 4
    assert seven[4] == seven[5] != seven[6] == seven[7] == seven[8]
    assert seven == seeds(seed=7)
    assert not {*seven} & {*seeds(seed=8)}
    assert seeds() == [None] * 9


def test_headers_are_sent_and_shown_nowhere():
    with ChatServer() as server:
        settings = served(server, extra_headers={"X-Team": TOKEN})
        lm = build_lm(settings)
        assert lm("Where?") == ["words"]
        check_lm(settings)
    assert [headers["x-team"] for headers in server.headers] == [TOKEN] * 3
    program = Direct()
    program.set_lm(lm)
    shown = [settings, settings.model_dump_json(), lm.kwargs, lm.dump_state(), program.dump_state(), lm.history]
    assert not any(TOKEN in str(what) for what in shown)
    again = Direct()
    again.load_state(program.dump_state())
    assert type(again.reader.lm) is dspy.LM


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_that_repeats_a_header_does_not_show_it(asynchronous):
    with ChatServer(failing=9, status=400, error=f"bad X-Team: {TOKEN}") as server:
        lm = build_lm(served(server, extra_headers={"X-Team": TOKEN}, num_retries=0))
        with pytest.raises(LMError, match=r"bad X-Team: \*\*\*") as caught:
            asyncio.run(lm.acall("Where?")) if asynchronous else lm("Where?")
    assert TOKEN not in f"{caught.getrepr(chain=True)}"


@pytest.mark.parametrize(
    ("authorization", "repeated"),
    [(f"Bearer {TOKEN}", TOKEN), (f"Basic {b64encode(f'me:{TOKEN}'.encode()).decode()}", f"me:{TOKEN}")],
)
def test_an_error_that_repeats_a_part_of_an_authorization_does_not_show_it(authorization, repeated):
    with ChatServer(failing=9, status=400, error=f"unknown: {repeated}") as server:
        lm = build_lm(served(server, extra_headers={"Authorization": authorization}, num_retries=0))
        with pytest.raises(LMError, match=r"unknown: \*\*\*") as caught:
            lm("Where?")
    assert TOKEN not in f"{caught.getrepr(chain=True)}"


def test_a_saved_lm_holds_no_secret_of_its_requests_bodies():
    lm = build_lm(LMSettings(model="openai/x", extra_body={"team": {"token": TOKEN}, "top_k": 5}))
    assert lm.dump_state()["extra_body"] == {"team": {}, "top_k": 5}


def test_a_call_that_waited_long_for_its_turn_is_made_again_all_the_same(monkeypatch):
    monkeypatch.setattr("hoptimizer.models.served._PATIENCE", 0.2)
    with ChatServer(lambda body: "words", seconds=0.1, error="too many requests") as server:
        lm = build_lm(served(server, max_concurrency=1))

        async def calls():
            first = [asyncio.create_task(lm.acall(str(number))) for number in range(4)]
            last = asyncio.create_task(lm.acall("last"))
            await asyncio.gather(*first)
            server.failing, server.status = 1, 429
            return await last

        assert asyncio.run(calls()) == ["words"]


def test_an_answer_stays_cached_when_a_header_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    with ChatServer() as server:
        for token in ("old", "new"):
            build_lm(served(server, extra_headers={"X-Team": token}))("Where?")
    assert len(server.bodies) == 1


def test_the_same_call_from_two_threads_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    with ChatServer(seconds=0.3) as server, ThreadPoolExecutor(3) as threads:
        lm = build_lm(served(server))
        answers = list(threads.map(lambda question: asyncio.run(lm.acall(question)), ["Where?", "Where?", "When?"]))
    assert answers == [["words"]] * 3
    assert len(server.bodies) == 2


def test_all_that_wait_for_a_call_fail_with_it(tmp_path, monkeypatch):
    async def calls(lm):
        return await asyncio.gather(*(lm.acall("Where?") for _ in range(10)), return_exceptions=True)

    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    with ChatServer(seconds=0.1, failing=99, status=503) as server:
        failures = asyncio.run(calls(build_lm(served(server, num_retries=0))))
    assert {type(failure) for failure in failures} == {LMServerError}
    assert len(server.bodies) == 1


def test_a_call_that_waits_long_for_its_turn_is_made_once_all_the_same(tmp_path, monkeypatch):
    async def calls(lm):
        queue = [lm.acall(str(number)) for number in range(6)]
        return (await asyncio.gather(*queue, *(lm.acall("Where?") for _ in range(5))))[6:]

    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    with ChatServer(seconds=0.3) as server:
        answers = asyncio.run(calls(build_lm(served(server, max_concurrency=1, timeout=1, num_retries=0))))
    assert answers == [["words"]] * 5
    assert len(server.bodies) == 7


def test_a_call_that_times_out_is_tried_by_none_of_those_that_wait_for_it(tmp_path, monkeypatch):
    async def calls(lm):
        return await asyncio.gather(*(lm.acall("Where?") for _ in range(5)), return_exceptions=True)

    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    with ChatServer(seconds=1) as server:
        failures = asyncio.run(calls(build_lm(served(server, timeout=0.5, num_retries=1))))
    assert {type(failure) for failure in failures} == {LMTimeoutError}
    assert len(server.bodies) == 2


@pytest.mark.parametrize("closed", [False, True])
def test_one_of_those_that_wait_for_a_call_makes_it_where_its_loop_stands_still(monkeypatch, closed):
    monkeypatch.setattr(same_calls, "_STANDSTILL", 0.1)
    together, most = 0, 0

    async def call():
        nonlocal together, most
        async with after_the_same("call"):
            together += 1
            most = max(most, together)
            await asyncio.sleep(0.5)  # longer than anybody is waited for whose loop stands still
            together -= 1

    async def calls():
        await asyncio.gather(*(call() for _ in range(3)))

    still = asyncio.new_event_loop()
    first = after_the_same("call")
    still.run_until_complete(first.__aenter__())
    if closed:
        still.close()
    asyncio.run(asyncio.wait_for(calls(), 10))
    assert most == 1
    asyncio.run(first.__aexit__(None, None, None))  # it ends after all, which concerns nobody
    still.close()
    asyncio.run(asyncio.wait_for(call(), 10))


def test_dspys_own_cache_which_does_not_tell_servers_apart_keeps_no_answer_of_one():
    with ChatServer(lambda _: "one") as one, ChatServer(lambda _: "another") as another:
        lms = [build_lm(served(server)) for server in (one, another)]
        assert [lm("Which server?") for lm in lms] == [["one"], ["another"]]
        assert all(lm.dump_state()["cache"] for lm in lms)


def test_what_a_cache_answers_does_not_raise_the_number_of_calls_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    with ChatServer() as server:
        lm = build_lm(served(server, max_concurrency=8, num_retries=0))
        lm("Where?")
        asyncio.run(lm.acall("Where?"))
        server.failing, server.status = len(server.bodies) + 3, 429
        for _ in range(3):
            with pytest.raises(LMRateLimitError):
                lm("When?")
        assert lm.slots.allowed == 1
        for _ in range(20):
            lm("Where?")
            asyncio.run(lm.acall("Where?"))
        assert lm.slots.allowed == 1
        lm("When?")
    assert lm.slots.allowed == 2


def test_all_that_call_a_model_at_a_server_share_its_slots():
    lms = [build_lm(LMSettings(model="openai/x", api_base=f"http://{host}/v1", max_concurrency=2)) for host in "aab"]
    assert lms[0].slots is lms[1].slots is not lms[2].slots


def test_the_least_limit_of_all_that_call_a_model_holds_for_as_long_as_somebody_set_it():
    with ChatServer(lambda _: ANSWER, seconds=0.05, together=3) as server:
        lms = [build_lm(served(server, max_concurrency=3)), judge := build_lm(served(server))]
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda n: lms[n % 2](f"Where is {n}?"), range(12)))
    assert server.most == 3
    lms = [lms[0].copy(temperature=0.5)]
    gc.collect()
    assert judge.slots.number == 3
    lms.clear()
    gc.collect()
    assert judge.slots.number == CONNECTIONS
    more = build_lm(served(server, max_concurrency=2 * CONNECTIONS))
    assert judge.slots is more.slots
    assert judge.slots.number == 2 * CONNECTIONS


def test_the_check_of_a_provider_makes_one_call(monkeypatch):
    calls = []

    def failing(*given, **options):
        calls.append(given)
        raise LMRateLimitError("busy")

    monkeypatch.setattr(dspy.LM, "__call__", failing)
    with pytest.raises(ServiceError, match="does not answer: busy"):
        check_lm(LMSettings(model="openai/x", api_key="none", num_retries=0))
    assert len(calls) == 1


ANTHROPIC_LIMIT = "This request would exceed your organization's rate limit of 30,000 input tokens per minute"
GEMINI_LIMIT = "You exceeded your current quota. * Quota exceeded for metric: input_token_count, limit: 250000"


@pytest.mark.parametrize("limit", [ANTHROPIC_LIMIT, GEMINI_LIMIT])
@pytest.mark.parametrize("model", ["anthropic/claude-x", "openai/x"])
def test_a_limit_of_tokens_a_minute_is_no_prompt_that_is_too_long(model, limit):
    with ChatServer(failing=9, status=429, error=limit) as server:
        lm = build_lm(LMSettings(model=model, api_base=server.url, api_key="key", num_retries=0))
        with pytest.raises(LMRateLimitError) as caught:
            lm("Where?")
    assert is_outage(caught.value)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("error", "permanent", "outage"),
    [
        (LMInvalidRequestError("Your credit balance is too low to access the Anthropic API"), True, False),
        (LMRateLimitError("You exceeded your current quota, please check your plan"), True, False),
        (LMRateLimitError("busy", provider_code="insufficient_quota"), True, False),
        (LMRateLimitError(GEMINI_LIMIT, provider_code="RESOURCE_EXHAUSTED"), False, True),
        (LMAuthError("bad key", status=401), True, False),
        (LMAuthError("This model requires moderation. Your input was flagged", status=403), False, False),
        (LMInvalidRequestError("no such parameter"), False, False),
    ],
)
def test_what_a_failure_means_for_other_calls(error, permanent, outage):
    assert (is_permanent(error), is_outage(error)) == (permanent, outage)


@pytest.mark.parametrize(
    "message",
    [
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096",
        "prompt is too long: 250000 tokens > 200000 maximum",
        "This model's maximum context length is 4096 tokens",
    ],
)
def test_a_prompt_that_is_too_long_is_told_by_the_words_of_each_server(message):
    with ChatServer(failing=9, status=400, error=message) as server, pytest.raises(ContextWindowExceededError):
        build_lm(served(server))("Where?")


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "maximum context length is 4096 tokens", "type": "BadRequest", "code": 400},
        {"detail": "maximum context length is 4096 tokens"},
    ],
)
def test_why_a_call_was_refused_is_read_wherever_a_server_says_it(body):
    refused = pytest.raises(ContextWindowExceededError, match="context length is 4096")
    with ChatServer(failing=9, status=400, error_body=body) as server, refused:
        asyncio.run(build_lm(served(server)).acall("Where?"))


@pytest.mark.parametrize(
    "body",
    [
        {"error": "Unexpected endpoint or method"},
        {"choices": [{"finish_reason": "error", "error": {"code": 502, "message": "x"}, "message": {"content": ""}}]},
    ],
)
def test_what_failed_with_the_status_of_a_success_is_made_again_and_no_answer_that_is_kept(body, tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    with ChatServer(lambda _: ANSWER, failing=1, status=200, error_body=body) as server:
        lm = build_lm(served(server, num_retries=1))
        found = [answers(lm, questions=QUESTIONS[:1]).metrics["em"] for _ in range(2)]
    assert (found, len(server.bodies)) == ([1.0, 1.0], 2)


@pytest.mark.parametrize(
    "choices",
    [[], [{"index": 0, "finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}]],
)
def test_an_answer_that_a_filter_withheld_is_a_failure_that_is_not_kept(choices, tmp_path, monkeypatch):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    body = {"object": "chat.completion", "model": "x", "choices": choices}
    with ChatServer(lambda _: ANSWER, failing=1, status=200, error_body=body) as server:
        lm = build_lm(served(server, num_retries=1))
        withheld, asked_anew = (answers(lm, questions=QUESTIONS[:1]) for _ in range(2))
    assert "filter withheld the answer" in withheld.rows[0].failure
    assert (withheld.metrics["failures"], asked_anew.metrics["em"], len(server.bodies)) == (1.0, 1.0, 2)


@pytest.mark.parametrize(("retries", "calls", "unanswered"), [(0, 1, 1), (1, 2, 0)])
def test_a_call_that_fails_is_made_again_as_often_as_asked_for(retries, calls, unanswered):
    with ChatServer(lambda _: ANSWER, failing=1) as server:
        lm = build_lm(served(server, num_retries=retries))
        evaluation = answers(lm, questions=QUESTIONS[:1], max_unanswered=1.0)
    assert (len(server.bodies), evaluation.metrics["unanswered"]) == (calls, unanswered)


@pytest.mark.parametrize("through_litellm", [False, True])
def test_a_server_that_is_too_slow_for_one_question_is_asked_the_others(through_litellm):
    with ChatServer(lambda _: ANSWER, seconds=lambda body: 4.0 if "Where is 3?" in str(body) else 0.0) as server:
        more = {"extra_body": {"key": 1}} if through_litellm else {}
        build_lm(served(server, **more))("imports what takes seconds")
        evaluation = answers(build_lm(served(server, timeout=2.0, num_retries=0, **more)), max_unanswered=0.2)
    assert [row.is_answered for row in evaluation.rows] == [n != 3 for n in range(8)]
    assert (evaluation.metrics["em"], evaluation.metrics["unanswered"]) == (1.0, 1.0)
    assert "imeout" in evaluation.rows[3].failure


def test_a_server_that_refuses_schemas_is_found_out_before_a_run():
    class Refusing(ChatServer):
        def complete(self, body):
            number, _, *rest = super().complete(body)
            self.error = "response_format: not supported"
            return number, *((400, self.error_body()) if "response_format" in body else (200, *rest))

    with Refusing() as server:
        check_lm(served(server, prompt_format="json"))
        with pytest.raises(UserError, match=r"does not answer: .*response_format: not supported"):
            check_lm(served(server, prompt_format="json", structured_outputs=True))


def test_schemas_that_servers_get_allow_no_more_than_they_name():
    class Place(BaseModel):
        name: str

    signature = dspy.Signature("question -> answer: Place", custom_types={"Place": Place})
    for model, closed in (("openai/x", {False}), ("local/smollm2-135m-instruct", {None})):
        lm = build_lm(LMSettings(model=model, prompt_format="plain"))
        schema = LMAdapter().schema(lm, signature)["response_format"]["json_schema"]["schema"]
        assert {part.get("additionalProperties") for part in (schema, *schema["$defs"].values())} == closed


def test_a_server_out_of_reach_stops_all_the_same():
    lm = build_lm(LMSettings(model="openai/x", api_base="http://127.0.0.1:9/v1", num_retries=0, timeout=5))
    with pytest.raises(ServiceError, match=r"8 questions got no answer, and max_unanswered=0\.05 allows no more"):
        answers(lm)


def test_no_more_calls_are_under_way_than_asked_for():
    with ChatServer(lambda _: ANSWER, seconds=0.05, together=3) as server:
        lm = build_lm(served(server, max_concurrency=3))
        answers(lm, workers=8)
        assert server.most == 3
        # DSPy's optimizers call from threads, with copies of the language model.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: lm.copy(temperature=0.5)(f"Where is {n}?"), range(8)))
    assert server.most == 3
    assert len(server.bodies) == 16


def test_calls_that_are_cancelled_while_they_wait_leave_the_slots_to_others():
    async def calls():
        slots = Slots(1)

        async def call():
            async with slots:
                await asyncio.sleep(0.01)

        first, second = asyncio.create_task(call()), asyncio.create_task(call())
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.wait_for(call(), timeout=1)

    asyncio.run(calls())


def test_copies_share_their_slots():
    lm = build_lm(LMSettings(model="openai/x", max_concurrency=2))
    assert lm.slots is lm.copy(temperature=1.0).slots is copy.deepcopy(lm).slots
    assert copy.copy(lm.slots).number == 2  # as pickling makes one in another process


def test_answers_of_an_own_server_are_kept_whether_the_cache_or_the_model_is_there_first(tmp_path, monkeypatch):
    config = load_config(None, ["data=atlas", "program=direct", "lm={model: openai/x, api_base: 'http://h/v1'}"])
    lm = Workbench(config).lms["default"]
    assert not lm.cache
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    assert lm.cache


@pytest.mark.parametrize("asynchronous", [False, True])
def test_more_calls_than_a_client_has_connections_are_under_way_at_once(tmp_path, monkeypatch, asynchronous):
    monkeypatch.setattr(dspy, "cache", AnswerCache(tmp_path))
    number = 2 * CONNECTIONS + 20
    with ChatServer(together=number) as server:
        lm = build_lm(served(server, max_concurrency=number))

        async def together(places):
            return await asyncio.gather(*(lm.acall(f"Where is {n}?") for n in places))

        def asked(places):
            if asynchronous:
                return asyncio.run(together(places))
            with ThreadPoolExecutor(number) as threads:
                return list(threads.map(lambda n: lm(f"Where is {n}?"), places))

        assert asked(range(number)) == [["words"]] * number
        assert server.most == number
        asked(reversed(range(number)))
    assert len(server.bodies) == number, "an answer is kept whichever client got it"


@pytest.mark.parametrize(
    "message",
    [
        {"content": ANSWER, "reasoning_content": "[[ ## answer ## ]]\nParis"},
        {"content": f"<think>[[ ## answer ## ]]\nParis</think>\n{ANSWER}"},
        {"content": f"[[ ## answer ## ]]\nParis</think>{ANSWER}"},
    ],
)
def test_what_a_reasoning_model_thinks_is_not_its_answer(message):
    with ChatServer(lambda _: message) as server:
        evaluation = answers(build_lm(served(server)))
    assert {row.answer for row in evaluation.rows} == {"Lyon"}
    assert evaluation.metrics["lm_calls"] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timeout": 5}, "timeout has no meaning for local/x, which runs in this process"),
        ({"extra_headers": {"X-Team": TOKEN}, "num_retries": 0}, "num_retries, extra_headers have no meaning"),
        ({"max_concurrency": 2}, "max_concurrency has no meaning"),
        ({"extra_body": {}}, "extra_body has no meaning"),
        ({"reasoning_effort": "low"}, "reasoning_effort has no meaning"),
    ],
)
def test_what_only_a_server_understands_is_refused_for_a_model_in_this_process(given, message):
    with pytest.raises(ValidationError, match=message):
        LMSettings(model="local/x", **given)


def test_top_p_is_followed_in_this_process():
    def sampled(**options):
        settings = LMSettings(
            model="local/smollm2-135m-instruct", max_tokens=12, cache=False, temperature=2.0, **options
        )
        return build_lm(settings)("The capital of France is")

    sampled(seed=0)  # later calls find the prompt's keys and values, which round otherwise
    assert sampled(seed=1, top_p=1e-6) == sampled(seed=2, top_p=1e-6)
    assert sampled(seed=1) != sampled(seed=2)


def test_a_run_keeps_no_header(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ChatServer(lambda _: ANSWER, failing=1, status=400, error=f"bad X-Team: {TOKEN}") as server:
        words = ["data=atlas", "data.dev=3", "program=direct", "lm.default.num_retries=0", "workers=1"]
        words += ["lm.default.model=openai/x", f"lm.default.api_base={server.url}", f"tracking.uri={uri(tmp_path)}"]
        variant = evaluate_variant(load_config(None, [*words, f"lm.default.extra_headers.X-Team={TOKEN}"]))
    assert [row.failure is None for row in variant.after.rows] == [False, True, True]
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"bad X-Team: ***" in path.read_bytes() for path in kept)
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]


WORDS = ["data=atlas", "lm.default.model=openai/x"]


def test_the_connection_does_not_decide_on_results():
    configs = [load_config(None, [*WORDS, *more]) for more in (
        [], ["lm.default.timeout=5"], ["lm.default.num_retries=9"], ["lm.default.max_concurrency=4"],
        ["lm.default.extra_headers.X-Team=1"],
    )]  # fmt: skip
    assert len({config.digest for config in configs}) == 1
    other = load_config(None, [*WORDS, "lm.default.extra_body.top_k=5"])
    assert other.digest != configs[0].digest
    assert configs[1].public()["lm"]["default"]["timeout"] == 5


@pytest.mark.parametrize(
    "word", ["extra_headers=TOKEN", "extra_headers.X=[TOKEN]", "extra_headers.X=TOKEN: {x", "api_key=[TOKEN]"]
)
def test_a_mistake_in_a_secret_does_not_show_it(word):
    with pytest.raises(UserError) as caught:
        load_config(None, [*WORDS, f"lm.default.{word}".replace("TOKEN", TOKEN)])
    assert TOKEN not in str(caught.value)
    assert str(caught.value).startswith("lm.default.")


def test_a_setting_that_openai_refuses_is_one_line():
    with pytest.raises(UserError, match=r"openai/o3: .*max_tokens >= 16000") as caught:
        build_lm(LMSettings(model="openai/o3", max_tokens=100))
    assert "\n" not in str(caught.value)


def test_a_key_that_can_t_be_sent_is_not_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{TOKEN}\n")
    with ChatServer() as server:
        settings = LMSettings(model="openai/model", api_base=server.url)
        with pytest.raises(UserError, match=r"its headers can't be sent .*OPENAI_API_KEY") as caught:
            check_lm(settings)
        with pytest.raises(LMError, match="header") as called:
            build_lm(settings).copy(cache=False, num_retries=0)("Where?")
    assert TOKEN not in f"{caught.getrepr(chain=True)}"
    assert TOKEN not in one_line(called.value)
