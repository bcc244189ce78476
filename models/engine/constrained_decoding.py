"""Decoding that can only write JSON of a schema, and always writes it to the end.

llguidance says which tokens may follow. Two things are added. The JSON is laid out as DSPy's JSON adapter shows its
demonstrations, since a small model writes best what it has just read. And there is a budget: however few tokens are
left, the object is closed before they run out, and no field uses up what the fields after it need. A list item that
the budget closed in its middle is left out: half a question is none.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from hoptimizer.models.field_limits import FIELD_RESERVE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# If even the shortest answer is longer than this, no budget serves the schema.
LONGEST_CLOSING = 4096

# What a schema may ask of a list beside the kind of its items; such lists are written on one line.
_BOUNDS = {"minItems", "maxItems", "prefixItems", "uniqueItems", "contains"}
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# What brings a value to its end outside of a string, in the order of trying. Some have a leading space, because after a
# colon the space may be left to the next token. A line's end comes before a comma, because a list ends with the one and
# goes on with the other.
_CLOSERS = ["]", "}", "\n", ",", "[]", " []", '"', ' "', "null", " null", "0", " 0", "false", " false"]
_CLOSERS += ["{", " {", "[", " [", " "]


@dataclass(frozen=True)
class Grammar:
    """A compiled schema.

    Attributes:
        text: the grammar as llguidance takes it.
        fields: how many fields the object has, or 1 where that is not known.
        lists: the names of those fields that are lists of any length, by the field's place, from 0.
    """

    text: str
    fields: int
    lists: Mapping[int, str] = field(default_factory=dict)


class GrammarError(ValueError):
    """The schema is one that llguidance can't compile."""


class GrammarCompiler:
    """Compiles schemas for one tokenizer, each once.

    Args:
        tokenizer: the model's tokenizer.
        vocabulary: how many logits the model gives, which may be more than the tokenizer has tokens.
        ends: the ids of the tokens that end an answer.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", vocabulary: int, ends: list[int]) -> None:
        from llguidance.hf import from_tokenizer  # brings transformers

        self.tokenizer: LLTokenizer = from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=ends)
        self.vocabulary = vocabulary
        self._grammars: dict[str, Grammar] = {}
        self.quote = self._single('"')
        self.closers = [token for text in _CLOSERS if (token := self._single(text)) is not None]

    def _single(self, text: str) -> int | None:
        tokens = self.tokenizer.tokenize_str(text)
        return tokens[0] if len(tokens) == 1 else None

    def compile(self, schema: dict[str, Any]) -> Grammar:
        """The grammar of a JSON schema.

        Raises:
            GrammarError: llguidance does not know a keyword of the schema, or the schema contradicts itself.
        """
        key = json.dumps(schema)
        if key not in self._grammars:
            grammar = _grammar(schema)
            failed, messages = LLMatcher.validate_grammar_with_warnings(grammar.text, self.tokenizer)
            if failed:
                raise GrammarError("; ".join(messages))
            self._grammars[key] = grammar
        return self._grammars[key]


def _grammar(schema: dict[str, Any]) -> Grammar:
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not properties or set(schema.get("required", ())) != set(properties):
        return Grammar(LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": _STYLE})), 1)
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parts, rules = [], []
    for number, (name, value) in enumerate(properties.items()):
        opening = ("{" if number == 0 else ",") + f"\n  {json.dumps(name, ensure_ascii=False)}: "
        parts += [json.dumps(opening), f"field{number}"]
        rules += _value(f"field{number}", value, shared)
    start = "start: " + " ".join([*parts, json.dumps("\n}")])
    lists = {number: name for number, (name, value) in enumerate(properties.items()) if _is_list(value)}
    return Grammar(LLMatcher.grammar_from_lark("\n".join([start, *rules])), len(properties), lists)


def _is_list(schema: dict[str, Any]) -> bool:
    """Whether a field is a list of any length."""
    is_array = schema.get("type") == "array" and isinstance(schema.get("items"), dict)
    return is_array and not _BOUNDS.intersection(schema)


def _value(name: str, schema: dict[str, Any], shared: dict[str, Any]) -> list[str]:
    """The grammar rules of a field's value: a list has one item on each line."""
    if not _is_list(schema):
        return [f"{name}: {_json(schema, shared)}"]
    first, between, last = (json.dumps(text) for text in ("[\n    ", ",\n    ", "\n  ]"))
    return [
        f'{name}: "[]" | {first} {name}item ({between} {name}item)* {last}',
        f"{name}item: {_json(schema['items'], shared)}",
    ]


def _json(schema: dict[str, Any], shared: dict[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **shared, 'x-guidance': _STYLE})}"


@dataclass
class _Scanner:
    """The place in a JSON text that was reached, kept up to date byte by byte."""

    string: bool = False
    escaped: bool = False
    depth: int = 0
    fields: int = 0  # finished at the top level
    last: int = 0  # the last byte that is no space

    @property
    def amid_item(self) -> bool:
        """Whether the list that is a field's value goes on with an item that may not be finished: within a string or an
        object, after a comma, and after a number, which might have further digits."""
        return self.string or self.depth > 2 or self.last not in b'"}]'

    def feed(self, text: bytes) -> None:
        for byte in text:
            if not 0x09 <= byte <= 0x20:
                self.last = byte
            if self.string:
                if self.escaped:
                    self.escaped = False
                elif byte == 0x5C:  # backslash
                    self.escaped = True
                elif byte == 0x22:  # quote
                    self.string = False
            elif byte == 0x22:
                self.string = True
            elif byte in b"{[":
                self.depth += 1
            elif byte in b"}]":
                self.depth -= 1
            elif byte == 0x2C and self.depth == 1:  # comma
                self.fields += 1


@dataclass
class _State:
    matcher: LLMatcher
    scanner: _Scanner = field(default_factory=_Scanner)

    def copy(self) -> "_State":
        return _State(self.matcher.deep_copy(), copy.copy(self.scanner))


class Constraint:
    """One answer being written under a grammar.

    Args:
        compiler: the compiler that made the grammar.
        grammar: what may be written.
        budget: the most tokens to write. An object whose shortest form is longer is written in its shortest form.

    Attributes:
        opening: the tokens that every answer starts with; they are taken already.
        done: whether the answer is complete.
        cut: whether the budget closed a field before the model did.
    """

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar, budget: int) -> None:
        self._compiler, self._grammar, self._left = compiler, grammar, budget
        self._state = _State(LLMatcher(compiler.tokenizer, grammar.text))
        self.done = self.cut = False
        self._cut_lists: list[str] = []
        self._closing = self._shortest()
        self._reserve = max(0, min(FIELD_RESERVE, (budget - len(self._closing)) // grammar.fields))
        if len(self._closing) >= budget:
            self.opening = self._close()
        else:
            self.opening = self._consume(self._state.matcher.compute_ff_tokens())
            self._closing = self._shortest()

    def allows(self, token: int) -> bool:
        """Whether the answer may go on with ``token``."""
        return self._state.matcher.validate_tokens([token]) == 1

    def mask(self) -> np.ndarray:
        """Which tokens the answer may go on with: booleans of shape ``(vocabulary,)``."""
        bits = np.frombuffer(self._state.matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._compiler.vocabulary].astype(bool)

    def take(self, token: int) -> list[int]:
        """Go on with ``token``.

        Returns:
            The tokens that were written: this one, and those that follow it without a choice. Where it would leave too
            few tokens to finish the answer, the shortest way to close what is open is written instead.
        """
        before, left, plain = self._state.copy(), self._left, self._plain(token)
        written = self._consume([token])
        forced = self._state.matcher.compute_ff_tokens()
        written += self._consume(forced)
        if self._state.matcher.is_stopped():
            self.done = True
            return written
        known = plain and not forced and self._state.matcher.validate_tokens(self._closing[:1])
        closing = self._closing if known else self._shortest()
        room = self._room()
        if len(closing) > room:
            self._state, self._left = before, left
            return self._close()
        self._closing = closing
        return written + self._close() if len(closing) == room else written

    def without_cut_items(self, text: str) -> str:
        """The finished answer without the list items that the budget closed before the model did.

        Args:
            text: the answer as it was written.
        """
        if not self._cut_lists:
            return text
        values = json.loads(text)
        for name in self._cut_lists:
            values[name] = values[name][:-1]
        return json.dumps(values, indent=2, ensure_ascii=False)

    def _room(self) -> int:
        """Tokens that the current field may still use: what is left, less the reserve of the fields after it."""
        return self._left - self._reserve * max(0, self._grammar.fields - 1 - self._state.scanner.fields)

    def _plain(self, token: int) -> bool:
        """Whether a token is mere text in a string: the way to close stays, but for a choice that begins as another."""
        scanner, text = self._state.scanner, self._compiler.tokenizer.decode_bytes([token])
        if not scanner.string or scanner.escaped or self._closing[0] != self._compiler.quote:
            return False
        return text.isascii() and b'"' not in text and b"\\" not in text

    def _consume(self, tokens: list[int]) -> list[int]:
        if tokens:
            self._state.matcher.consume_tokens(tokens)
            self._state.scanner.feed(self._compiler.tokenizer.decode_bytes(tokens))
            self._left -= len(tokens)
        return list(tokens)

    def _close(self) -> list[int]:
        """Write the shortest way to the end of the field that is being written, or of the whole answer."""
        self.cut = True
        written: list[int] = []
        field_number = self._state.scanner.fields
        if field_number in self._grammar.lists and self._state.scanner.amid_item:
            self._cut_lists.append(self._grammar.lists[field_number])
        for token in self._closing:
            written += self._consume([token])
            if self._state.scanner.fields > field_number and self._room() > len(self._closing) - len(written):
                written += self._consume(self._state.matcher.compute_ff_tokens())
                self._closing = self._shortest()
                return written
        self.done = True
        return written

    def _shortest(self) -> list[int]:
        """A short way from here to a complete answer: close what is open, and fill what is required with the least."""
        state = self._state.copy()
        tokens: list[int] = []
        while not state.matcher.is_accepting():
            step = state.matcher.compute_ff_tokens() or [self._closer(state)]
            state.matcher.consume_tokens(step)
            state.scanner.feed(self._compiler.tokenizer.decode_bytes(step))
            tokens += step
            if len(tokens) > LONGEST_CLOSING:
                raise GrammarError(f"its shortest answer is longer than {LONGEST_CLOSING} tokens")
        return tokens

    def _closer(self, state: _State) -> int:
        for token in [self._compiler.quote] if state.scanner.string else self._compiler.closers:
            if token is not None and state.matcher.validate_tokens([token]) == 1:
                return token
        # Inside an enumeration, an escape or a character of several bytes, any token that may follow will do.
        bits = np.frombuffer(state.matcher.compute_bitmask(), dtype=np.uint8)
        return int(np.unpackbits(bits, bitorder="little").argmax())
