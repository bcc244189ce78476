"""The options of a dense retriever."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hoptimizer.retrieval.options import RetrieverOptions

DENSE = "all-minilm-l6-v2"
"""The encoder of the weights store that a dense retriever takes by default."""

Pooling = Literal["mean", "cls", "last"]

_PROBES = 256


class DenseSettings(RetrieverOptions):
    """One vector for a passage (Karpukhin et al., 2020), such as Contriever's, E5's, BGE's or MiniLM's.

    Where an option is ``None``, the files of sentence-transformers in the model's folder say it; where there are none,
    vectors are the mean of all hidden states with length 1, and texts are up to 512 tokens without a prefix.

    Attributes:
        name: ``dense``.
        model: the encoder: a name of the weights store, a hub id or a folder, in the format of transformers or
            sentence-transformers.
        pooling: which hidden states a text's vector is made of: the ``mean`` of all, the first (``cls``) or the
            ``last``.
        normalize: whether vectors have length 1, so that scores are cosines.
        query_prefix: stands before every query, such as E5's ``"query: "``.
        passage_prefix: stands before every passage.
        max_tokens: the most tokens of a text; the encoder may read fewer.
        index: ``exact`` compares a query with every passage, ``ivf`` with those in the cells nearest to it (faiss'
            inverted lists), ``auto`` chooses by the corpus' size.
        probes: the cells that ``ivf`` searches for a query; with more it finds more of what is nearest, and takes
            longer.
        k: passages that a search returns; ``None`` for as many as the program takes by default.

    Example:
        >>> from hoptimizer.retrieval import DenseSettings
        >>> DenseSettings(model="intfloat/e5-base-v2", query_prefix="query: ", passage_prefix="passage: ").shown
        'dense intfloat/e5-base-v2'
    """

    name: Literal["dense"] = "dense"
    model: str = Field(DENSE, min_length=1)
    pooling: Pooling | None = None
    normalize: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    max_tokens: int | None = Field(None, ge=8)
    # Left out of a config that leaves them as they are, which is then the one that it was before there were cells.
    index: Literal["auto", "exact", "ivf"] = Field("auto", exclude_if=lambda index: index == "auto")
    probes: int = Field(_PROBES, ge=1, exclude_if=lambda probes: probes == _PROBES)

    @model_validator(mode="after")
    def _probes_are_of_cells(self) -> Self:
        if self.index == "exact" and self.probes != _PROBES:
            raise ValueError("probes is of the index ivf alone: drop it, or set retriever.index to ivf")
        return self

    @property
    def _found_by(self) -> str:
        return f"{self.name} {self.model}"
