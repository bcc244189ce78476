"""An importer: one item of a quiz's file becomes a question."""

from hoptimizer.eval import Question
from hoptimizer.eval.datasets.published_formats import Decomposition, Pool, Published


class QuizItem(Published):
    """``{"id": …, "ask": …, "solution": …, "hint": …}``; the hint is the supporting passage.

    Attributes:
        id: unique in the file.
        ask: the question.
        solution: its answer.
        hint: a text that holds the answer.
    """

    id: str
    ask: str
    solution: str
    hint: str

    def convert(self, pool: Pool, decomposition: Decomposition | None) -> Question | None:
        """The item as a question, its hint handed to the pool."""
        passage = pool(f"Hint {self.id}", self.hint)
        return Question(id=self.id, question=self.ask, answers=[self.solution], passages=[passage] if passage else [])
