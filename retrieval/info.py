"""The state of a retriever's index on this machine."""

from pathlib import Path
from typing import Any

from hoptimizer.retrieval.dense.settings import DenseSettings
from hoptimizer.retrieval.index_folder import BrokenIndexError, Manifest, check_index, draft_folder
from hoptimizer.retrieval.passage import Corpus
from hoptimizer.retrieval.settings import (
    HybridSettings,
    OracleSettings,
    RetrieverOptions,
    RetrieverSettings,
)


def index_info(settings: RetrieverOptions, corpus: Corpus) -> dict[str, Any]:
    """Look at the index that ``build_retriever`` would open, and check all of it; nothing is built.

    Args:
        settings: the config's ``retriever`` section.
        corpus: the passages to search.

    Returns:
        ``retriever``; ``index``: ``exact`` or ``plaid`` for ColBERT, ``dense``, ``bm25``, ``server`` for a ColBERT
        server, ``elsewhere`` for an engine or the web, ``hybrid`` for several retrievers, ``oracle``, ``own`` for a
        retriever of the user's;
        ``corpus``, its ``passages`` and ``corpus_digest``. For an index on disk also ``checkpoint`` and
        ``checkpoint_digest`` of what it was made with, ``folder``, ``bytes`` and ``state``: ``ready``,
        ``absent`` (it will be built), ``unfinished`` (a build is under way, or was ended, and the next one goes on)
        or ``broken`` with the reason. For several retrievers ``of``, what there is to say
        of each.

    Raises:
        UserError: the model can't be had.

    Example:
        >>> from hoptimizer.retrieval import Corpus, Passage, RetrieverSettings, index_info
        >>> corpus = Corpus([Passage("rhine", "Rhine", "The Rhine flows through Basel.")], name="rivers")
        >>> info = index_info(RetrieverSettings(name="bm25"), corpus)
        >>> info["index"], info["corpus"], info["passages"], info["state"]
        ('bm25', 'rivers', 1, 'absent')
    """
    info: dict[str, Any] = {"retriever": settings.name, "index": "own"}
    info |= {"corpus": corpus.name, "passages": len(corpus), "corpus_digest": corpus.digest}
    if isinstance(settings, HybridSettings):
        return info | {"index": "hybrid", "of": [index_info(one, corpus) for one in settings.of]}
    if isinstance(settings, OracleSettings):
        return info | {"index": "oracle", "of": [index_info(settings.of, corpus)]}
    # What follows is imported here, because it brings torch.
    if isinstance(settings, DenseSettings):
        from hoptimizer.retrieval.dense import model, retriever

        return info | _on_disk(*retriever.index_of(settings, corpus, model.find_model(settings)))
    if not isinstance(settings, RetrieverSettings):
        return info | {"index": "elsewhere"} if settings.elsewhere else info
    if settings.url:
        return info | {"index": "server"}
    if settings.name == "bm25":
        from hoptimizer.retrieval import bm25

        return info | _on_disk(bm25.bm25_folder(corpus), bm25.manifest(corpus))
    from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
    from hoptimizer.retrieval.colbert.retriever import index_of

    return info | _on_disk(*index_of(settings, corpus, find_checkpoint(settings.checkpoint)))


def _on_disk(folder: Path, wanted: Manifest) -> dict[str, Any]:
    """What there is to say of an index in a folder."""
    state = "unfinished" if draft_folder(folder).is_dir() else "absent"
    if folder.is_dir():
        try:
            check_index(folder, wanted, whole=True)
            state = "ready"
        except BrokenIndexError as error:
            state = f"broken: {error}"
    return {
        "index": wanted.kind,
        "state": state,
        "checkpoint": wanted.checkpoint,
        "checkpoint_digest": wanted.checkpoint_digest,
        "folder": str(folder),
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }
