"""A scripted retriever and a scripted language model, for tests of control flow alone."""

import asyncio
import math
import re

from dspy.utils import DummyLM

from hoptimizer.retrieval.passage import Passage
from hoptimizer.retrieval.retriever import Retriever

_OUTPUT = re.compile(r"the field `\[\[ ## (\w+) ## ]]`")
_INPUT = re.compile(r"\[\[ ## (\w+) ## ]]\n(.*?)\n\n(?=\[\[ ## |Respond with)", re.DOTALL)


class ScriptedRetriever(Retriever):
    """Finds what the script says for a query, else nothing; remembers the queries."""

    name = "scripted"

    def __init__(self, script: dict[str, list[Passage]]):
        self.script = script
        self.queries: list[str] = []

    def search(self, queries, k):
        self.queries += queries
        return [self.script.get(query, [])[:k] for query in queries]


class ScriptedLM(DummyLM):
    """Answers DSPy's chat layout by a function of the output field and the inputs; remembers what it was asked.

    Args:
        script: ``(output field, {input field: text}) -> value``; a tuple is written as it is, without its field.
        delay: ``(output field, inputs) -> seconds`` that a call takes.
        likelihood: ``(output field, inputs) -> probability`` of what is written, told where a call asks for it.

    Attributes:
        asked: output field and inputs of every call, in the order in which they came.
        most: the most calls that were under way at once.
    """

    def __init__(self, script, delay=lambda field, inputs: 0.0, likelihood=None):
        super().__init__([])
        self.script, self.delay, self.likelihood = script, delay, likelihood
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.running = self.most = 0

    def __call__(self, prompt=None, messages=None, **kwargs):
        return asyncio.run(self.acall(prompt, messages, **kwargs))

    async def acall(self, prompt=None, messages=None, **kwargs):
        text = messages[-1]["content"]
        field, inputs = _OUTPUT.search(text)[1], dict(_INPUT.findall(text))
        self.asked.append((field, inputs))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.delay(field, inputs))
        finally:
            self.running -= 1
        value = self.script(field, inputs)
        text = value[0] if isinstance(value, tuple) else self._format_answer_fields({field: value})
        if self.likelihood is None or not kwargs.get("logprobs"):
            return [text]
        logprobs = {"content": [{"token": text, "logprob": math.log(self.likelihood(field, inputs))}]}
        return [{"text": text, "logprobs": logprobs}]


def passage(id: str, text: str = "") -> Passage:
    return Passage(id, id.title(), text or f"{id} " * 12)
