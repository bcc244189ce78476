"""Which encoder makes a dense retriever's vectors, and how: what its folder says, and what the config says instead."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.models.folder import check_model
from hoptimizer.retrieval.dense.settings import DENSE, DenseSettings, Pooling
from hoptimizer.retrieval.encoders.model_files import digest_of, model_folder, weights_of
from hoptimizer.retrieval.encoders.sentence_modules import SETTINGS, Module, read_modules, read_settings

_POOLING = "config.json"
# The names that a prompt for passages goes by, the first that is there counts.
_PASSAGE_PROMPTS = ("document", "passage", "corpus")
# sentence-transformers' names of what we can pool by, in the notation of today and in the one of before.
_POOLED: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}
_ANY_FLAG = "pooling_mode_"


@dataclass(frozen=True)
class Encoding:
    """How texts become vectors.

    Attributes:
        pooling: which hidden states a text's vector is made of: the mean of all, the first or the last.
        normalize: whether vectors have length 1.
        query_prefix: stands before a query.
        passage_prefix: stands before a passage.
        max_tokens: the most tokens of a text; an encoder that reads fewer cuts it there. Passages are paragraphs, which
            512 hold.
        lower: whether texts are put into lower case.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    query_prefix: str = ""
    passage_prefix: str = ""
    max_tokens: int = 512
    lower: bool = False


@dataclass(frozen=True)
class DenseModel:
    """An encoder on this machine, and how it is used.

    Attributes:
        name: as the user named it.
        encoder: folder of weights, config and tokenizer in transformers' format.
        projections: folders of the layers on the pooled vector, in order.
        encoding: how texts become vectors.
        digest: SHA-256 of its files and of how passages become vectors.
    """

    name: str
    encoder: Path
    projections: tuple[Path, ...]
    encoding: Encoding
    digest: str


def find_model(settings: DenseSettings) -> DenseModel:
    """The encoder that settings ask for, which is downloaded if need be.

    What the settings leave open is read from the files of sentence-transformers in its folder, if there are any.

    Raises:
        UserError: it can't be had, or has a module or a pooling that is not known here.
    """
    folder = model_folder(settings.model, "retriever.model", DENSE)
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise UserError(f"retriever.model: {folder} has no config.json: expected an encoder's folder")
    check_model(folder)
    modules = read_modules(folder)
    encoder = modules[0].folder if modules else folder
    projections = tuple(module.folder for module in modules if module.kind == "Dense")
    given = {
        name: value
        for name in ("pooling", "normalize", "query_prefix", "passage_prefix", "max_tokens")
        if (value := getattr(settings, name)) is not None
    }
    encoding = replace(_published(folder, modules, settings.pooling is None), **given)
    # The folder's own files by which it was decided are in the encoding; passages do not see the query's prefix.
    sha = hashlib.sha256(json.dumps(asdict(replace(encoding, query_prefix="")), sort_keys=True).encode())
    for part in (encoder, *projections):
        sha.update(digest_of(part, (*_DECIDING, weights_of(part))).encode())
    return DenseModel(settings.model, encoder, projections, encoding, sha.hexdigest())


_DECIDING = ("config.json", "tokenizer*", "vocab*", "merges.txt", "*.model")


def _published(folder: Path, modules: list[Module], pooled: bool) -> Encoding:
    """The encoding that the files of sentence-transformers describe.

    Args:
        folder: the model's folder.
        modules: its modules.
        pooled: whether the pooling is read as well.
    """
    if not modules:
        return Encoding()
    settings, texts = read_settings(folder / SETTINGS), read_settings(modules[0].folder / "sentence_bert_config.json")
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise UserError(f"{folder / SETTINGS}: prompts: expected texts by name; take the file as it was published")
    default: str = prompts.get(str(settings.get("default_prompt_name")), "")
    longest = texts.get("max_seq_length")
    if longest is not None and (not isinstance(longest, int) or longest < 1):
        raise UserError(f"{modules[0].folder}: max_seq_length: {longest!r:.40} is no number of tokens")
    encoding = Encoding(
        normalize=any(module.kind == "Normalize" for module in modules),
        query_prefix=prompts.get("query", default),
        passage_prefix=next((prompts[name] for name in _PASSAGE_PROMPTS if name in prompts), default),
        max_tokens=Encoding.max_tokens if longest is None else longest,
        lower=texts.get("do_lower_case") is True,
    )
    found = [module.folder / _POOLING for module in modules if module.kind == "Pooling"]
    return replace(encoding, pooling=_pooling(found[0])) if found and pooled else encoding


def _pooling(file: Path) -> Pooling:
    """The pooling that a file names.

    Raises:
        UserError: it is another than ours, or several.
    """
    settings = read_settings(file)
    named = _modes(settings)
    if len(named) != 1 or named[0] not in _POOLED or settings.get("include_prompt") is False:
        raise UserError(
            f"{file}: a pooling by {' and '.join(named) or 'nothing'}"
            f"{', without the prompt,' if settings.get('include_prompt') is False else ''} is not known here; "
            "set retriever.pooling to mean, cls or last, or take another model"
        )
    return _POOLED[named[0]]


def _modes(settings: dict[str, Any]) -> list[str]:
    mode = settings.get("pooling_mode")
    if mode is not None:
        return [str(one) for one in (mode if isinstance(mode, list) else [mode])]
    flags = [name for name, value in settings.items() if name.startswith(_ANY_FLAG) and value is True]
    return [_FLAGS.get(flag, flag.removeprefix(_ANY_FLAG)) for flag in flags]
