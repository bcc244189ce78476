"""Questions along one chain: ``single`` and ``bridge2`` to ``bridge4``."""

from typing import Any

import yaml

from hoptimizer.eval.atlas.chains import Chain, Step, signature
from hoptimizer.eval.atlas.facts import HERE, Facts, bare_name, capitalised, pick

QuestionRow = dict[str, Any]


class Wording:
    """How questions and statements about facts are phrased, as ``wording_questions.yaml`` has it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        table = yaml.safe_load((HERE / "wording_questions.yaml").read_text(encoding="utf-8"))
        self.relations: dict[str, dict[str, Any]] = table["relations"]
        self.pairs: dict[str, dict[str, Any]] = table["pairs"]
        self.base_verbs: dict[str, str] = table["base_verbs"]

    def ask(self, chain: Chain) -> str:
        """The question for the end of a chain; it names only the chain's first entity."""
        subject, parts = chain[0].entity.labelled, self._parts(chain)
        for depth, part in enumerate(parts[:-1]):
            form = pick(_light(self._forms(part)["phrase"], depth, 1), "phrase", subject)
            subject = self._fill(form, part[0], subject)
        ask = "ask_now" if parts[-1][-1].renamed else "ask"
        form = pick(_light(self._forms(parts[-1])[ask], len(parts) - 1, 2), "ask", subject, signature(parts[-1]))
        return self._fill(form, parts[-1][0], subject)

    def state(self, step: Step) -> str:
        """The statement of a fact, with the entity's full name."""
        form = self.relations[step.relation]["fact"].replace("{y}", step.said)
        return capitalised(self._fill(form, step, step.entity.labelled))

    def hop(self, step: Step) -> QuestionRow:
        """A hop of a question, which asks for a single fact on its own."""
        return {"question": self.ask((step,)), "answer": bare_name(step.value), "passage": step.entity.id}

    def _parts(self, chain: Chain) -> list[Chain]:
        """The chain cut into steps, with some pairs of steps left together where one phrase covers both."""
        parts, start = [], 0
        while start < len(chain):
            pair = chain[start : start + 2]
            # A phrase for two steps is shorter; about every second time the steps are spelt out, for variety.
            together = signature(pair) in self.pairs and pick([True, False], "pair", *(step.value for step in chain))
            if together and start + 2 < len(chain):
                together = "phrase" in self.pairs[signature(pair)]
            parts.append(pair if together else chain[start : start + 1])
            start += len(parts[-1])
        return parts

    def _forms(self, part: Chain) -> dict[str, list[str]]:
        return self.relations[part[0].relation] if len(part) == 1 else self.pairs[signature(part)]

    def _fill(self, form: str, step: Step, subject: str) -> str:
        verb = step.entity.fields.get("verb", "")
        author = step.entity.fields.get("author", "")
        return form.format(x=subject, verb=verb, base=self.base_verbs.get(verb, ""), author=author)


def _light(forms: list[str], depth: int, behind_phrase: int) -> list[str]:
    """The forms that stay readable around a phrase of a given depth.

    Words that follow a long phrase pile up verbs at the end ("the river on which the city where the museum is lies").
    Therefore any number of words may follow a name, ``behind_phrase`` a phrase, and none a phrase within a phrase.
    """
    if depth == 0:
        return forms
    most = behind_phrase if depth == 1 else 0
    return [form for form in forms if len(form.split("{x}")[1].rstrip("?").split()) <= most]


def rationale(statements: list[str], answer: str) -> str:
    """The chain of thought: the statement of each hop, then the answer."""
    return " ".join([*statements, f"So the answer is: {answer}."])


def along(wording: Wording, chain: Chain) -> QuestionRow:
    """The question for the end of a chain, with its annotations and without an id."""
    answers = wording.facts.answers(chain[-1].value)
    return {
        "question": wording.ask(chain),
        "answers": answers,
        "passages": [step.entity.id for step in chain],
        "hops": [wording.hop(step) for step in chain],
        "rationale": rationale([wording.state(step) for step in chain], answers[0]),
        "type": "single" if len(chain) == 1 else f"bridge{len(chain)}",
    }
