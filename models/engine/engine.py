"""The in-process engine behind ``local/NAME``: DSPy's canonical requests answered by models in this process."""

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from dspy import lm15
from dspy.clients.base_lm import BaseLM
from dspy.clients.engines.base import validate_request

from hoptimizer.models.engine.calls import Call, Rollout, elsewhere, next_rollout
from hoptimizer.models.engine.chat_template import leading_tokens, render
from hoptimizer.models.engine.request import Completion, GenerationRequest
from hoptimizer.models.folder import fingerprints
from hoptimizer.models.settings import LOCAL
from hoptimizer.models.weights.store import resolve

if TYPE_CHECKING:
    from hoptimizer.models.engine.constrained_decoding import Grammar
    from hoptimizer.models.engine.generator import Generator

DEFAULT_MAX_TOKENS = 256
# A prompt must leave room for at least so many tokens of the answer (or for max_tokens, if that is less).
LEAST_ROOM = 32

# By name, each with what tells its folder from what it was before a training.
_generators: "dict[str, tuple[str, Generator]]" = {}
_lock = threading.Lock()
# From when to when a model was loaded, by ``time.perf_counter``.
_loadings: list[tuple[float, float]] = []


def generator(model: str) -> "Generator":
    """The model of a ``local/NAME`` string, loaded at the first call and shared by all engines.

    Raises:
        UserError: there is no such model, or it can't be pulled or loaded.
    """
    name = model.removeprefix(LOCAL)
    with _lock:
        if name not in _generators:
            start = time.perf_counter()
            from hoptimizer.models.engine.generator import Generator  # PyTorch is for those whose model runs here

            _generators[name] = fingerprints([name]), Generator(resolve(name))
            _loadings.append((start, time.perf_counter()))
        return _generators[name][1]


def seconds_since(start: float) -> float:
    """Seconds since ``time.perf_counter`` was ``start``, without those in which a model was fetched or loaded.

    The first question of a process waits for that, and says nothing of what a question takes.
    """
    end = time.perf_counter()
    return end - start - sum(max(0.0, stop - max(begin, start)) for begin, stop in _loadings)


def release(model: str) -> None:
    """Take the model of a ``local/NAME`` string out of memory; the next call loads it again.

    Calls that are under way are lost.
    """
    with _lock:
        loaded = _generators.pop(model.removeprefix(LOCAL), None)
    if loaded is not None:
        loaded[1].close()


def release_outdated(model: str) -> None:
    """:func:`release` a model whose folder has other weights than those that were loaded: it was trained again."""
    name = model.removeprefix(LOCAL)
    if (loaded := _generators.get(name)) and loaded[0] != fingerprints([name]):
        release(model)


def forget_prefixes() -> None:
    """Give back the memory that all models here hold for earlier prompts, e.g. because something else needs it now."""
    with _lock:
        loaded = [one for _, one in _generators.values()]
    for one in loaded:
        one.forget()


class Engine:
    """What the two engines have in common.

    A request whose ``metadata`` has a ``mixture``, as :class:`hoptimizer.models.mixture.MixtureAdapter` writes it, is
    answered from several prompts at once.

    An engine is a name and nothing else: copies, pickles and saved programs refer to the model, which is loaded once
    per process, at its first use. The model that answers is the one that the request names.

    Args:
        model: the ``local/NAME`` string of the model.
        templated: whether messages go through the model's chat template; else they follow one another as they are.
    """

    supported_params = frozenset({"response_format", "logprobs"})
    supports_response_schema = True

    def __init__(self, model: str, templated: bool = True) -> None:
        self.model = model
        self.templated = templated

    def dump_state(self) -> dict[str, Any]:
        """What a saved program keeps of the engine."""
        return {"model": self.model, "templated": self.templated}

    @classmethod
    def of(cls, model: str, templated: bool = True) -> Self:
        """The engine of a model, always the same one."""
        return _shared(cls, model, templated)

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> Self:
        """The engine of a saved program."""
        return cls.of(state["model"], state["templated"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (type(self), self.model, self.templated)

    def _submit(self, request: lm15.Request) -> "Future[Completion]":
        validate_request(request)
        _refuse_unsupported(request)
        call = Call(request, self.templated, next_rollout())
        return (elsewhere() or answer)(call)


class LocalEngine(Engine):
    """DSPy engine over models in this process, for ``dspy.LM(engine=...)``."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request; concurrent ones share batches.

        Raises:
            dspy.lm15.ContextLengthError: the prompt is too long (DSPy turns it into ``ContextWindowExceededError``).
            dspy.lm15.UnsupportedFeatureError: tools, images or the like; or a schema that can't be compiled.
        """
        return _response(request, self._submit(request).result())

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """The answer as DSPy's stream events, all of them at its end."""
        return lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Do nothing: the model serves other engines too."""


class AsyncLocalEngine(Engine):
    """Asynchronous DSPy engine over models in this process, for ``dspy.LM(async_engine=...)``."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Like :meth:`LocalEngine.complete`; a cancelled call leaves its batch."""
        # Rendering, counting and, the first time, loading take too long for the event loop.
        future = await asyncio.to_thread(self._submit, request)
        return _response(request, await asyncio.wrap_future(future))

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:
        """Like :meth:`LocalEngine.stream`."""
        for event in lm15.response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Do nothing: the model serves other engines too."""


EngineType = TypeVar("EngineType", bound=Engine)
_engines: dict[tuple[type, str, bool], Engine] = {}


def answer(call: Call) -> "Future[Completion]":
    """Have a call answered by the model in this process.

    Raises:
        dspy.lm15.ContextLengthError: the prompt is too long.
        dspy.lm15.UnsupportedFeatureError: the schema can't be compiled.
        UserError: there is no such model here.
    """
    from hoptimizer.models.engine.constrained_decoding import GrammarError  # brings NumPy

    request, templated = call.request, call.templated
    model, config = generator(request.model), request.config
    prompt = _prompt(model, request.system, request.messages, templated)
    mixture = (config.extensions or {}).get("metadata", {}).get("mixture", {})
    others = [render(model.tokenizer, one, templated) for one in mixture.get("others", [])]
    prompts = [_with_leading(model, one, templated) for one in (prompt, *others)]
    longest = max(map(len, prompts))
    wanted = config.max_tokens or DEFAULT_MAX_TOKENS
    room = model.context_length - longest
    if room < min(wanted, LEAST_ROOM):
        raise lm15.ContextLengthError(
            f"the prompt has {longest} tokens, and {request.model} takes {model.context_length} with its answer"
        )
    temperature = config.temperature or 0.0
    try:
        return model.submit(
            GenerationRequest(
                tokens=prompts[0],
                max_tokens=min(wanted, room),
                grammar=_grammar(model, config.response_format),
                temperature=temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                seed=_seed(prompt, config.seed or 0, call.rollout) if temperature > 0 else 0,
                stop=config.stop,
                logprobs=config.logprobs is not None,
                others=tuple(prompts[1:]),
                weights=tuple(mixture.get("weights", [1.0])),
            )
        )
    except GrammarError as error:
        reason = f"the output's JSON schema: {error}"
        raise lm15.UnsupportedFeatureError(reason, feature="response_format") from error


def is_local(lm: BaseLM) -> bool:
    """Whether an LM runs in this process."""
    return isinstance(getattr(lm, "engine", None), LocalEngine)


def _shared(cls: type[EngineType], model: str, templated: bool) -> EngineType:
    return cast(EngineType, _engines.setdefault((cls, model, templated), cls(model, templated)))


def _refuse_unsupported(request: lm15.Request) -> None:
    if request.tools:
        raise lm15.UnsupportedFeatureError(f"{request.model} does not call tools", feature="tools")
    for message in request.messages:
        if any(not isinstance(part, lm15.TextPart) for part in message.parts):
            raise lm15.UnsupportedFeatureError(f"{request.model} reads text alone", feature="multimodal input")


def _with_leading(model: "Generator", prompt: str, templated: bool) -> list[int]:
    """The tokens of a prompt, after those that every prompt of the model begins with."""
    leading = leading_tokens(model.tokenizer, templated)
    return [*leading, *model.tokenizer(prompt, add_special_tokens=False)["input_ids"]]


def _prompt(model: "Generator", system: Any, asked: Sequence[lm15.Message], templated: bool) -> str:  # noqa: ANN401 - text, or parts of it
    if system is not None and not isinstance(system, str):
        system = "".join(part.text for part in system)
    messages = [{"role": message.role, "content": message.text or ""} for message in asked]
    leading = [{"role": "system", "content": system}] if system else []
    return render(model.tokenizer, leading + messages, templated)


def _grammar(model: "Generator", response_format: dict[str, Any] | None) -> "Grammar | None":
    kind = (response_format or {}).get("type")
    if response_format is None or kind == "text":
        return None
    schema = response_format.get("schema") if kind == "json_schema" else {"type": "object"}
    if schema is None or kind not in ("json_schema", "json_object"):
        raise lm15.UnsupportedFeatureError(f"unknown response format {kind!r}", feature="response_format")
    return model.compiler.compile(schema)


def _seed(prompt: str, seed: int, rollout: Rollout) -> int:
    place = [prompt, seed, rollout.id, rollout.candidate]
    return int.from_bytes(hashlib.sha256(json.dumps(place).encode()).digest()[:8], "big") >> 1


def _response(request: lm15.Request, completion: Completion) -> lm15.Response:
    return lm15.Response(
        id=None,
        model=request.model,
        message=lm15.Message.assistant(completion.text),
        # An object that the budget closed is whole: "length" would tell the caller that it can't be parsed.
        finish_reason="stop" if completion.finished else "length",
        usage=lm15.Usage(
            input_tokens=completion.prompt_tokens,
            output_tokens=completion.tokens,
            cache_read_tokens=completion.cached_tokens,
        ),
        logprobs=_logprobs(completion),
        provider_data={"cut": completion.cut},
    )


def _logprobs(completion: Completion) -> tuple[lm15.TokenLogprob, ...] | None:
    if completion.logprobs is None:
        return None
    return tuple(lm15.TokenLogprob(token=token, logprob=logprob) for token, logprob in completion.logprobs)
