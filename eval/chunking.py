"""Dividing texts into those of passages: by words, sentences or tokens, with overlap where it is wanted."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from hoptimizer.common.errors import UserError, nearest
from hoptimizer.common.text import sentences

Chunker = Callable[[str], list[str]]
"""Divides a text into the texts of passages, in order."""

_NUMBER = "sentences up to a number of tokens"


Starts = Callable[[str], list[int]]
"""Where the tokens of a text begin."""


def make_chunker(text: str, overlap: int = 0) -> Chunker:
    """What divides texts as a line says.

    Args:
        text: ``words:100`` (as DPR divides Wikipedia; Karpukhin et al., 2020, section 4.1), ``sentences:3``, or
            ``tokens:128`` of the embedded checkpoint's tokenizer; ``tokens:128:CHECKPOINT`` takes another one's. A
            number alone, such as ``200``, is as many whole sentences as have at most so many tokens.
        overlap: words, sentences or tokens at the end of a passage that the next one begins with.

    Raises:
        UserError: it is written otherwise, the overlap is not smaller than a passage, or the checkpoint has no
            tokenizer that can be used.

    Example:
        >>> from hoptimizer.eval.chunking import make_chunker
        >>> make_chunker("words:2")("one two three")
        ['one two', 'three']
        >>> make_chunker("sentences:2", overlap=1)("It rains. It pours. It stops.")
        ['It rains. It pours.', 'It pours. It stops.']
    """
    unit, _, rest = (_NUMBER, "", text) if text.isascii() and text.isdigit() else text.partition(":")
    size, _, checkpoint = rest.partition(":")
    if unit not in (*_UNITS, "tokens", _NUMBER):
        hint = nearest(unit, [*_UNITS, "tokens"])
        raise UserError(f"--chunk {text!r}: expected UNIT:SIZE, such as words:100; {hint}")
    if not (size.isascii() and size.isdigit() and int(size)) or (checkpoint and unit != "tokens"):
        example = "200" if unit == _NUMBER else f"{unit}:100"
        raise UserError(f"--chunk {text!r}: expected a whole number above 0, such as {example}")
    if not 0 <= overlap < int(size):
        raise UserError(f"--overlap {overlap}: expected a number from 0 to less than the {size} of --chunk {text!r}")
    if unit == _NUMBER:
        return partial(_by_sentences_of_tokens, _tokenizer("minilm"), int(size), overlap)
    if unit == "tokens":
        return partial(_by_tokens, _tokenizer(checkpoint or "minilm"), int(size), overlap)
    return partial(_UNITS[unit], int(size), overlap)


def _by_words(size: int, overlap: int, text: str) -> list[str]:
    return [" ".join(part) for part in _parts(text.split(), size, overlap)]


def _by_sentences(size: int, overlap: int, text: str) -> list[str]:
    return [" ".join(part) for part in _parts(sentences(text), size, overlap)]


def _parts(units: list[str], size: int, overlap: int) -> list[list[str]]:
    # What a last part would only repeat is no part.
    return [units[start : start + size] for start in range(0, max(len(units) - overlap, 1), size - overlap)]


_UNITS: dict[str, Callable[[int, int, str], list[str]]] = {
    "words": _by_words,
    "sentences": _by_sentences,
}


def _tokenizer(checkpoint: str) -> Starts:
    from hoptimizer.retrieval.encoders.model_files import SAFE_FILES, local_folder

    base = "all-minilm-l6-v2" if checkpoint == "minilm" else checkpoint
    folder = local_folder(base, "--chunk", "minilm", allow=SAFE_FILES)
    if (file := folder / "tokenizer.json").is_file():
        try:
            return partial(_starts, read_tokenizer(file))
        except ValueError as error:
            raise UserError(f"--chunk: {file} cannot be read ({error}); take another checkpoint") from error
    from transformers import AutoTokenizer  # imported here: seconds that a tokenizer.json does not need

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"--chunk: {checkpoint!r} has no tokenizer that can be read ({error}); take another") from error
    if not tokenizer.is_fast:
        raise UserError(f"--chunk: the tokenizer of {checkpoint!r} does not say where tokens stand; take another")
    return partial(_starts, tokenizer.backend_tokenizer)


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``; it neither cuts nor fills up.

    Raises:
        ValueError: it can't be read.
    """
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(str(error)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _starts(tokenizer: Tokenizer, text: str) -> list[int]:
    return [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]


def _by_tokens(tokens: Starts, size: int, overlap: int, text: str) -> list[str]:
    starts = tokens(text)

    def word_start(token: int, least: int) -> int:
        """The token that the word of a token begins with, if that is after ``least``; else the token itself."""
        first = token
        while first > least and " " not in text[starts[first] - 1 : starts[first] + 1]:
            first -= 1
        return first if first > least else token

    # A word stays whole: where it would be cut, it goes to the next chunk, unless it is longer than one.
    chunks, first = [], 0
    while first + size < len(starts):
        last = word_start(first + size, first)
        chunks.append(text[starts[first] : starts[last]].strip())
        back = last - overlap  # not behind the chunk's own start, where it has a word of its whole length
        first = word_start(back, first) if overlap and back > first else last
    return [*chunks, text[starts[first] if starts and first else 0 :].strip()]


def _by_sentences_of_tokens(tokens: Starts, size: int, overlap: int, text: str) -> list[str]:
    """Whole sentences while they fit; one that is longer than a passage is cut between words."""
    units = [part for sentence in sentences(text) for part in _by_tokens(tokens, size, 0, sentence) if part]
    lengths = [len(tokens(unit)) for unit in units]
    chunks: list[str] = []
    first = 0
    while first < len(units):
        last = first + 1
        while last < len(units) and sum(lengths[first : last + 1]) <= size:
            last += 1
        chunks.append(" ".join(units[first:last]))
        first = last if last == len(units) else _repeated(lengths, first, last, overlap, size)
    return chunks


def _repeated(lengths: Sequence[int], first: int, last: int, overlap: int, size: int) -> int:
    """The sentence that the next passage begins with, so that it repeats at most so many tokens and has a new one."""
    start = last
    while (
        start - 1 > first and sum(lengths[start - 1 : last]) <= overlap and sum(lengths[start - 1 : last + 1]) <= size
    ):
        start -= 1
    return start
