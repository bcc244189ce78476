"""A scripted retriever and a scripted language model, for tests of control flow alone."""

import asyncio
import json
import math
import re
import time

import dspy
from dspy import lm15
from dspy.utils import DummyLM

from hoptimizer.common.errors import UserError
from hoptimizer.retrieval.passage import Passage
from hoptimizer.retrieval.retriever import Retriever

_OUTPUTS = re.compile(r"(?:the field|then) `\[\[ ## (\w+) ## ]]`(?! and then ending)")
_JSON_OUTPUTS = re.compile(r"JSON object in the following order of fields: (.*)\.")
_INPUT = re.compile(r"\[\[ ## (\w+) ## ]]\n(.*?)\n\n(?=\[\[ ## |Respond with)", re.DOTALL)
# Turns of the event loop, a millisecond each, after which no other call is to be expected.
_QUIET = 500


class ScriptedRetriever(Retriever):
    """Finds what the script says for a query, else nothing; remembers the queries."""

    name = "scripted"

    def __init__(self, script: dict[str, list[Passage]]):
        self.script = script
        self.queries: list[str] = []

    def search(self, queries, k):
        self.queries += queries
        return [self.script.get(query, [])[:k] for query in queries]


class RefusingRetriever(ScriptedRetriever):
    """Refuses one query, and with it those that it is asked together with, as an engine does for a query's length."""

    def __init__(self, script: dict[str, list[Passage]], refused: str):
        super().__init__(script)
        self.refused = refused

    def search(self, queries, k):
        if self.refused in queries:
            raise UserError(f"scripted refuses: {self.refused} is too long")
        return super().search(queries, k)


class ScriptedLM(DummyLM):
    """Answers DSPy's chat prompt format by a function of the output field and the inputs; remembers what it was asked.

    Args:
        script: ``(output field, {input field: text}) -> value``, asked for each field of the output; a tuple for the
            first is written as it is, without its field.
        delay: ``(output field, inputs) -> seconds`` that a call takes.
        likelihood: ``(output field, inputs) -> probability`` of what is written, told where a call asks for it.
        together: no call ends before so many have been under way at once, or no other has come for a while.

    Attributes:
        asked: first output field and inputs of every call, in the order in which they came.
        most: the most calls that were under way at once.
    """

    def __init__(self, script, delay=lambda field, inputs: 0.0, likelihood=None, together=1):
        super().__init__([])
        self.script, self.delay, self.likelihood, self.together = script, delay, likelihood, together
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.running = self.most = 0

    def __call__(self, prompt=None, messages=None, **kwargs):
        return asyncio.run(self.acall(prompt, messages, **kwargs))

    async def acall(self, prompt=None, messages=None, **kwargs):
        text = messages[-1]["content"]
        (field, *others), inputs = _OUTPUTS.findall(text), dict(_INPUT.findall(text))
        self.asked.append((field, inputs))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.delay(field, inputs))
            quiet = 0  # counted in turns: a busy machine gives every task as many
            while self.most < self.together and quiet < _QUIET:
                before = len(self.asked)
                await asyncio.sleep(0.001)
                quiet = quiet + 1 if len(self.asked) == before else 0
        finally:
            self.running -= 1
        value = self.script(field, inputs)
        values = {field: value} | {other: self.script(other, inputs) for other in others}
        text = value[0] if isinstance(value, tuple) else self._format_answer_fields(values)
        if self.likelihood is None or not kwargs.get("logprobs"):
            return [text]
        logprobs = {"content": [{"token": text, "logprob": math.log(self.likelihood(field, inputs))}]}
        return [{"text": text, "logprobs": logprobs}]


def passage(id: str, text: str = "") -> Passage:
    return Passage(id, id.title(), text or f"{id} " * 12)


class ScriptedEngine:
    """Answers DSPy's chat and JSON prompt formats like :class:`ScriptedLM`, behind a real ``dspy.LM``, whose calls go
    through its cache.

    Args:
        script: ``(output field, {input field: text}, whole prompt) -> value``; asked for each field of the output.
        delay: seconds that a call takes.

    Attributes:
        calls: how many were answered.
    """

    def __init__(self, script, delay=0.0):
        self.script, self.delay, self.calls = script, delay, 0

    def lm(self, name="scripted/model", **options):
        return dspy.LM(name, engine=self, async_engine=_AsyncScriptedEngine(self), **options)

    def complete(self, request):
        time.sleep(self.delay)
        return self.answer(request)

    def answer(self, request):
        self.calls += 1
        text = request.messages[-1].text
        fields = _OUTPUTS.findall(text)
        inputs = dict(_INPUT.findall(text))
        prompt = f"{request.system} {[message.text for message in request.messages]}"
        if asked := _JSON_OUTPUTS.search(text):
            names = re.findall(r"`(\w+)`", asked[1])
            answer = json.dumps({field: self.script(field, inputs, prompt) for field in names})
        else:
            parts = [f"[[ ## {field} ## ]]\n{self.script(field, inputs, prompt)}" for field in fields]
            answer = "\n\n".join([*parts, "[[ ## completed ## ]]"])
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant(answer),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=len(text.split()), output_tokens=10),
        )

    def __deepcopy__(self, memo):
        return self


class _AsyncScriptedEngine:
    def __init__(self, engine):
        self.engine = engine

    async def complete(self, request):
        await asyncio.sleep(self.engine.delay)
        return self.engine.answer(request)

    def __deepcopy__(self, memo):
        return self


class Listener:
    """Keeps what a compile tells its listener."""

    def __init__(self, progress=lambda *_: None):
        self.progress = progress
        self.figures, self.settings, self.candidates = [], {}, []

    def record(self, of, figures, update):
        self.figures.append((of, dict(figures), update))

    def candidate(self, candidate):
        self.candidates.append(candidate)

    def settle(self, settings):
        self.settings.update(settings)
