"""The score of a labeler within its program, on questions whose supporting passages are known."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from hoptimizer.common.batching import CORES, Batcher
from hoptimizer.eval.datasets.question import Question
from hoptimizer.eval.runner import Evaluation, evaluate
from hoptimizer.models.small.card import RankCalibration, log_odds
from hoptimizer.models.small.encoder import AlignedPair, PairTokenizer, TextPair
from hoptimizer.models.small.fields import pair
from hoptimizer.models.small.labeler import Labeler, TagDecision
from hoptimizer.models.small.tagger import TaggerOutput, TokenTagger, tag_texts
from hoptimizer.optimizers.labels.examples import Task
from hoptimizer.optimizers.training.tagger import TaggerTrainingConfig
from hoptimizer.programs import Program
from hoptimizer.retrieval import Passage, Retriever

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# The threshold at which the program runs to collect passages that the rank calibration is fitted to.
_PROBE = 0.3
_BATCH = 512


class RetrievalEvaluator:
    """Finds the threshold with the best retrieval, and how much a passage's rank in the search should count.

    Every search and every pair of query and passage is computed once, however many thresholds are tried.

    Args:
        program: the program that the labeler works in; its reader does not run.
        questions: questions with supporting passages.
        task: the labeler's task.
        config: the config that the labeler is trained with.
        recall_weight: the weight of recall relative to precision in the F measure that is maximized.
        ranked: whether a passage's rank in the search counts.
        workers: the number of questions that are answered at once.
    """

    def __init__(
        self,
        program: Program,
        questions: Sequence[Question],
        task: Task,
        config: TaggerTrainingConfig,
        recall_weight: float,
        ranked: bool,
        workers: int,
    ) -> None:
        self._program = program.deepcopy()
        self._program.reader = None
        if program.retriever is not None:
            self._program.retriever = _Remembered(program.retriever)
        self._questions = questions
        self._task, self._config = task, config
        self._recall_weight = recall_weight
        self._ranked = ranked
        self._workers = workers

    def __call__(self, model: TokenTagger, tokenizer: PairTokenizer) -> tuple[float, dict[str, Any]]:
        """Score a labeler as it is at the end of an epoch.

        Args:
            model: the labeler.
            tokenizer: the tokenizer of its pairs.

        Returns:
            the best F measure; and at its threshold the scores ``f``, ``recall``, ``precision`` and ``passages`` (per
            question), with the fields for the card under ``card``.
        """
        labeler = _Labeler(model, tokenizer, self._task)
        rank = self._fit(labeler) if self._ranked else None
        found = []
        for threshold in THRESHOLDS:
            labeler.reading = self._reading(threshold, rank)
            scores = self._score(self._run(labeler))
            card = {"threshold": threshold, "rank": rank and [one.model_dump() for one in rank]}
            found.append((scores["f"], {**scores, "card": card}))
        # Of several equally good thresholds the middle one is taken: with a slightly higher one than the highest, or a
        # slightly lower one than the lowest, the score may be much worse.
        most = max(value for value, _ in found)
        equal = [one for one in found if one[0] == most]
        return equal[len(equal) // 2]

    def _reading(self, threshold: float, rank: tuple[RankCalibration, RankCalibration] | None) -> TagDecision:
        return TagDecision(self._task.labels, threshold, self._config.token_threshold, rank)

    def _run(self, labeler: "_Labeler") -> Evaluation:
        self._program.models["labeler"] = labeler
        return evaluate(self._program, self._questions, workers=self._workers)

    def _score(self, evaluation: Evaluation) -> dict[str, float]:
        rows = evaluation.rows
        hits = sum(len(set(row.passages) & set(row.question.passages)) for row in rows)
        kept = sum(len(row.passages) for row in rows)
        recall = hits / sum(len(row.question.passages) for row in rows)
        precision = hits / kept if kept else 0.0
        weight = self._recall_weight**2
        f = (1 + weight) * precision * recall / (weight * precision + recall) if hits else 0.0
        return {
            "f": f,
            "recall": evaluation.metrics["recall"],
            "precision": precision,
            "passages": kept / len(rows),
        }

    def _fit(self, labeler: "_Labeler") -> tuple[RankCalibration, RankCalibration] | None:
        """Logistic regressions of a passage's support on log-odds and rank, for the first round and for later ones."""
        labeler.reading = self._reading(_PROBE, None)
        seen: tuple[dict[Any, tuple[float, int, bool]], ...] = ({}, {})
        for row in self._run(labeler).rows:
            for step in row.steps:
                if step.step == "labeler":
                    asked = step.inputs
                    support = asked["passage"] in row.question.passages
                    key = (row.question.id, asked["query"], asked["passage"])
                    seen[min(step.depth, 1)][key] = (step.outputs["probability"], asked["rank"], support)
        first = _regression(list(seen[0].values()))
        later = _regression(list(seen[1].values()))
        return (first, later or first) if first else None


def _regression(seen: Sequence[tuple[float, int, bool]]) -> RankCalibration | None:
    if len({support for *_, support in seen}) < 2:
        return None
    features = np.array([[log_odds(probability), np.log(place)] for probability, place, _ in seen])
    fitted = LogisticRegression().fit(features, [support for *_, support in seen])
    (odds, place), bias = fitted.coef_[0], fitted.intercept_[0]
    return RankCalibration(odds=float(odds), place=float(place), bias=float(bias))


class _Labeler:
    """A labeler that is still being trained; each pair goes through the model only once."""

    extra_inputs = Labeler.extra_inputs
    reading: TagDecision

    def __init__(self, model: TokenTagger, tokenizer: PairTokenizer, task: Task) -> None:
        self._inputs = task.inputs
        self._model, self._tokenizer = model, tokenizer
        self._known: dict[TextPair, tuple[AlignedPair, TaggerOutput]] = {}
        self._batcher: Batcher[TextPair, tuple[AlignedPair, TaggerOutput]] = Batcher(self._tag, limit=_BATCH, on=CORES)

    async def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        key = pair(inputs, self._inputs)
        if key not in self._known:
            self._known[key] = await asyncio.wrap_future(self._batcher.submit(key))
        return self.reading(inputs, *self._known[key])

    def __deepcopy__(self, memo: dict[int, object]) -> "_Labeler":
        return self

    def _tag(self, pairs: Sequence[TextPair]) -> list[tuple[AlignedPair, TaggerOutput]]:
        return tag_texts(self._model, self._tokenizer, pairs)


class _Remembered(Retriever):
    """A retriever that searches only once for each query."""

    def __init__(self, retriever: Retriever) -> None:
        self.name = retriever.name
        self._retriever = retriever
        self._known: dict[tuple[str, int], list[Passage]] = {}

    async def asearch(self, query: str, k: int) -> list[Passage]:
        if (query, k) not in self._known:
            self._known[query, k] = await self._retriever.asearch(query, k)
        return self._known[query, k]

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return self._retriever.search(queries, k)
