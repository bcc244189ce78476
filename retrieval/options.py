"""What the options of every retriever have."""

from pydantic import ConfigDict, Field

from hoptimizer.common.options import Options
from hoptimizer.common.validation import Section


class RerankSettings(Section):
    """A cross-encoder that orders the first passages of a search anew.

    Attributes:
        model: hub id or folder of a model of transformers that gives a pair of texts one score.
        depth: passages that it reads for each query; those behind them stay in their order.
        max_tokens: the most tokens of query and passage together; the model may read fewer.

    Example:
        >>> from hoptimizer.retrieval import RerankSettings, RetrieverSettings
        >>> RetrieverSettings(name="bm25", rerank=RerankSettings(model="cross-encoder/ms-marco-MiniLM-L6-v2")).shown
        'bm25, reranked by cross-encoder/ms-marco-MiniLM-L6-v2'
    """

    model_config = ConfigDict(frozen=True)

    model: str = Field(min_length=1)
    depth: int = Field(30, ge=1)
    max_tokens: int = Field(512, ge=8)


class RetrieverOptions(Options):
    """Which retriever finds passages, and how many; the options of a user's own are the fields of a subclass.

    Attributes:
        name: one of ours, an entry point of ``hoptimizer.retrievers``, or a dotted path.
        k: passages that a search returns; ``None`` for as many as the program takes by default.
        rerank: the cross-encoder that orders what was found anew; ``None`` for none.
    """

    k: int | None = Field(None, ge=1)
    # Left out of a config that has none, which is then the one that it was before there were rerankers.
    rerank: RerankSettings | None = Field(None, exclude_if=lambda rerank: rerank is None)

    @property
    def shown(self) -> str:
        """What is searched with, in a few words without secrets."""
        return f"{self._found_by}, reranked by {self.rerank.model}" if self.rerank else self._found_by

    @property
    def _found_by(self) -> str:
        return self.name

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers that are asked."""
        return ()

    @property
    def elsewhere(self) -> bool:
        """Whether the passages are elsewhere, so that no corpus is needed here."""
        return bool(self.urls)

    @property
    def indexed_here(self) -> bool:
        """Whether an index of the passages is built on this machine."""
        return not self.elsewhere

    @property
    def login(self) -> tuple[str, ...]:
        """What the environment says of who asks; secrets."""
        return ()

    @property
    def encoders(self) -> tuple[str, ...]:
        """The models that it searches with and orders by, as they are named."""
        own = [getattr(self, name, None) for name in ("checkpoint", "model")]
        return tuple(one for one in (*own, self.rerank and self.rerank.model) if isinstance(one, str))
