"""A cross-encoder over a retriever: it reads query and passage together (Nogueira and Cho, 2019)."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, cached_property

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from hoptimizer.common.batching import CORES, Batcher, after
from hoptimizer.common.errors import UserError
from hoptimizer.models.engine.loading import device_and_dtype, loading
from hoptimizer.models.engine.packed import pack
from hoptimizer.models.folder import fingerprints
from hoptimizer.models.small.encoder import ROWS, PairTokenizer, by_length
from hoptimizer.retrieval.encoders.model_files import model_folder
from hoptimizer.retrieval.encoders.text_encoder import load_checked, readable_tokens
from hoptimizer.retrieval.passage import Passage
from hoptimizer.retrieval.retriever import Retriever

_KEY = "retriever.rerank.model"
_EXAMPLE = "cross-encoder/ms-marco-MiniLM-L6-v2"
_DECIMALS = 4
# Scores that are remembered, each with its query and passage: some tens of megabytes.
_REMEMBERED = 50_000

Scorer = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
"""Gives each pair of a query and a passage's text its score, higher is better."""


class CrossEncoder:
    """Scores passages for a query by a model of transformers with one label, and remembers the latest scores.

    Args:
        name: hub id or folder of the model.
        max_tokens: the most tokens of query and passage together; the passage is cut.

    Raises:
        UserError: it can't be loaded, or has another number of labels.

    Attributes:
        passes: pairs that went through the model so far.
    """

    def __init__(self, name: str, max_tokens: int) -> None:
        folder = str(model_folder(name, _KEY, _EXAMPLE))
        self._device, dtype = device_and_dtype()
        with loading(folder, "a cross-encoder"):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            if config.num_labels != 1:
                raise UserError(
                    f"{_KEY}: {name!r} has {config.num_labels} labels, not one score; take a cross-encoder such as "
                    f"{_EXAMPLE!r}"
                )
            model, tokenizer, missing = load_checked(folder, config, AutoModelForSequenceClassification)
        if missing:
            raise UserError(f"{_KEY}: the weights of {name!r} lack {missing[0]}; take a trained cross-encoder")
        if tokenizer.pad_token is None or getattr(config, "pad_token_id", None) is None:
            tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
            model.config.pad_token_id = tokenizer.pad_token_id
        self._model = model.to(self._device, dtype)
        pack(self._model)
        self._tokenizer = PairTokenizer(tokenizer, readable_tokens(model, max_tokens), shared=False)
        # On a CPU a score does not depend on what else is in the batch, where all are padded alike.
        self._rows = ROWS if self._device.type == "cpu" else 1
        self._known: dict[tuple[str, str], float] = {}
        self.passes = 0

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The scores of pairs of a query and a passage's text, higher is better."""
        new = list(dict.fromkeys(pair for pair in pairs if pair not in self._known))
        self._known |= zip(new, self._scores(new), strict=True)
        scores = [self._known[pair] for pair in pairs]
        for oldest in list(self._known)[:-_REMEMBERED]:
            del self._known[oldest]
        return scores

    def forget(self) -> None:
        """Forget all scores."""
        self._known.clear()

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        rows = self._tokenizer(pairs)
        scores = torch.empty(len(rows), dtype=torch.float32)
        for places in by_length(rows, self._rows):
            logits = self._model(**self._tokenizer.pad([rows[i] for i in places], self._device)).logits
            scores[places] = logits[:, 0].float().cpu()
        self.passes += len(rows)
        return scores.round(decimals=_DECIMALS).tolist()


def cross_encoder(name: str, max_tokens: int) -> CrossEncoder:
    """The cross-encoder of that name, which is loaded once in a process and remembers its scores; a folder that was
    trained again is another one."""
    return _cross_encoder(name, max_tokens, fingerprints([name]))


@cache
def _cross_encoder(name: str, max_tokens: int, weights: str) -> CrossEncoder:
    return CrossEncoder(name, max_tokens)


class RerankedRetriever(Retriever):
    """Orders the first passages of a retriever anew, by a cross-encoder's scores.

    Args:
        retriever: finds them.
        scorer: gives each pair of a query and a passage's text its score.
        depth: passages that are scored. Those behind them stay in their order, with the lowest of the scores.

    Example:
        >>> from hoptimizer.retrieval import BM25Retriever, Corpus, Passage, RerankedRetriever
        >>> corpus = Corpus([Passage("a", "Oslo", "A city in Norway."), Passage("b", "Norway", "A country.")])
        >>> shorter = lambda pairs: [-len(text) for _, text in pairs]
        >>> retriever = RerankedRetriever(BM25Retriever(corpus), shorter, depth=2)
        >>> [passage.id for passage in retriever.search(["Which city is in Norway?"], k=2)[0]]
        ['b', 'a']
    """

    def __init__(self, retriever: Retriever, scorer: Scorer, depth: int) -> None:
        self.name = f"{retriever.name}, reranked"
        self._retriever, self._scorer, self._depth = retriever, scorer, depth
        self.elsewhere = retriever.elsewhere
        self.corpus = getattr(retriever, "corpus", None)  # of those that tell it

    def pool(self, k: int) -> int:
        return self._retriever.pool(max(k, self._depth))

    def passage(self, passage_id: str) -> Passage | None:
        return self._retriever.passage(passage_id)

    def forget(self) -> None:
        super().forget()
        if isinstance(self._scorer, CrossEncoder):
            self._scorer.forget()

    def begin(self, query: str, k: int) -> "Future[list[Passage]]":
        found = self._retriever.begin(query, max(k, self._depth))
        return after([found], lambda rankings: self._reading.submit((query, rankings[0], k)))

    async def asearch_pages(self, query: str, k: int, titles: Collection[str]) -> list[Passage]:
        found = await self._retriever.asearch_pages(query, max(k, self._depth), titles)
        return await asyncio.wrap_future(self._reading.submit((query, found, k)))

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        rankings = self._retriever.search(queries, max(k, self._depth))
        return self._read([(query, ranking, k) for query, ranking in zip(queries, rankings, strict=True)])

    @cached_property
    def _reading(self) -> Batcher[tuple[str, list[Passage], int], list[Passage]]:
        return Batcher(self._read, self.batch, CORES)

    def _read(self, found: list[tuple[str, list[Passage], int]]) -> list[list[Passage]]:
        """For each query, with what was found for it and how many passages are wanted, these in their new order."""
        scores = iter(self._scorer([(query, str(p)) for query, ranking, _ in found for p in ranking[: self._depth]]))
        return [self._reranked(ranking, scores)[:k] for _, ranking, k in found]

    def _reranked(self, ranking: list[Passage], scores: Iterator[float]) -> list[Passage]:
        """A ranking, its first passages by their scores, which are the next ones."""
        read = [passage.scored(next(scores)) for passage in ranking[: self._depth]]
        # Stable: passages with equal scores stay in the order in which they were found.
        read.sort(key=lambda passage: -(passage.score or 0.0))
        return read + [passage.scored(read[-1].score or 0.0) for passage in ranking[self._depth :]]
