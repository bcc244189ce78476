"""The state of a retriever's index on this machine."""

from hoptimizer.retrieval.passage import Corpus
from hoptimizer.retrieval.settings import RetrieverOptions, RetrieverSettings


def index_info(settings: RetrieverOptions, corpus: Corpus) -> dict[str, str | int]:
    """Look at the index that ``build_retriever`` would open, and check all of it; nothing is built.

    Args:
        settings: the config's ``retriever`` section.
        corpus: the passages to search.

    Returns:
        ``retriever``; ``index``: ``exact`` or ``plaid``, ``memory`` for BM25, ``server`` for a ColBERT server, ``own``
        for a retriever of the user's;
        ``corpus``, its ``passages`` and ``corpus_digest``. For an index on disk also ``checkpoint`` and
        ``checkpoint_digest``, ``folder``, ``bytes`` and ``state``: ``ready``, ``absent`` (it will be built) or
        ``broken`` with the reason.

    Raises:
        UserError: the checkpoint can't be had.

    Example:
        >>> from hoptimizer.retrieval import Corpus, Passage, RetrieverSettings, index_info
        >>> corpus = Corpus([Passage("rhine", "Rhine", "The Rhine flows through Basel.")], name="rivers")
        >>> info = index_info(RetrieverSettings(name="bm25"), corpus)
        >>> info["index"], info["corpus"], info["passages"]
        ('memory', 'rivers', 1)
    """
    info: dict[str, str | int] = {"retriever": settings.name, "index": "own"}
    info |= {"corpus": corpus.name, "passages": len(corpus), "corpus_digest": corpus.digest}
    if not isinstance(settings, RetrieverSettings):
        return info
    info["index"] = "server" if settings.url else "memory"
    if settings.name == "bm25" or settings.url:
        return info
    # Imported here, because they bring torch.
    from hoptimizer.retrieval.colbert.checkpoint import find_checkpoint
    from hoptimizer.retrieval.colbert.retriever import index_kind, manifest
    from hoptimizer.retrieval.index_folder import BrokenIndexError, check_index, index_folder

    checkpoint = find_checkpoint(settings.checkpoint)
    kind = index_kind(settings, corpus)
    folder = index_folder(corpus, checkpoint, kind)
    state = "absent"
    if folder.is_dir():
        try:
            check_index(folder, manifest(kind, corpus, checkpoint))
            state = "ready"
        except BrokenIndexError as error:
            state = f"broken: {error}"
    return info | {
        "index": kind,
        "state": state,
        "checkpoint": checkpoint.name,
        "checkpoint_digest": checkpoint.digest,
        "folder": str(folder),
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }
