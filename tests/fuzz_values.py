"""Strange inputs: valid ones that were changed a little, since arbitrary bytes fail at the first check."""

import copy
import json
import re

import yaml
from hypothesis import strategies as st

# Bidirectional controls, halves of a character, marks of byte order, ends of lines of other systems, an emoji.
CHARACTERS = "\x00\x07\x1b\x7f\x85\ufeff\u202e\u2066\u2028\ud800\udfff\udcff\r\n\t \\'\"{}[]$%é京🙂"
TEXTS = [
    "",
    " ",
    "\n",
    "x" * 5_000,
    "京" * 100_000,
    "\ud800",
    "a\x00b",
    "\u202egnol",
    "\x1b[2J",
    "a\nb",
    "~",
    "/",
    "..",
    "~no-such-user/x",
    "null",
    "true",
    "nan",
    "0x1F",
    "1_000",
    "2024-01-31",
    "???",
    "${data.name}",
    "${nowhere}",
    "${oc.env:NO_SUCH_VARIABLE}",
    "${oc.env:HOME}",
    "${oc.decode:'[1'}",
    "${seed}",
    "${",
    "http://",
    "http://[",
    "http://127.0.0.1:99999999/v1",
    "http://127.0.0.1:port/v1",
    "https://me:w@rd@127.0.0.1:9/v1",
    "sqlite:///",
    "a:b",
    "hoptimizer.nowhere:Thing",
]
NUMBERS = [0, -1, 1, 2**63, -(2**64), 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308, *map(float, ("inf", "-inf", "nan"))]


def texts():
    """Short texts, long ones, and those that mean something to a parser."""
    return st.sampled_from(TEXTS) | st.text(st.sampled_from(CHARACTERS) | st.characters(), max_size=12)


def values():
    """Values of any type; parsers' own pitfalls are named, and put in their place by ``as_json`` and ``as_yaml``."""
    single = st.none() | st.booleans() | st.sampled_from(NUMBERS) | texts() | st.sampled_from(sorted(PITFALLS))
    return single | st.recursive(
        single, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3), max_leaves=5
    )


def _laughs(entry, many, joined):
    return "[" + joined.join([f"&a0 {entry}", *(f"&a{n} [{joined.join([f'*a{n - 1}'] * many)}]" for n in range(1, 9))])


# What no dump gives, in YAML and in JSON.
PITFALLS = {
    "@laughs@": (_laughs("[lol]", 9, ", ") + "]", "9" * 100),
    "@itself@": ("&itself [*itself]", "[1]]"),
    "@itself in a mapping@": ("&itself {name: *itself}", '{"a": 1, "a": 2}'),
    "@merged@": ("{<<: {name: rag}, k: 2}", "01"),
    "@merged with nothing@": ("{<<: 1}", "'single'"),
    "@nowhere@": ("*nowhere", "nowhere"),
    "@python@": ("!!python/object/apply:os.getcwd []", "NaN"),
    "@binary@": ("!!binary gA==", "Infinity"),
    "@set@": ("!!set {a, b}", "1e999"),
    "@date@": ("2024-01-31T00:00:00Z", "-0"),
    "@bad date@": ("2024-13-31", '"\\ud800"'),
    "@tagged@": ("!mine x", '"\\u0000"'),
    "@sexagesimal@": ("1:99:99", "1E400"),
    "@long number@": ("9" * 5_000, "9" * 5_000),
    "@long hexadecimal number@": ("0x" + "F" * 5_000, "1" + "0" * 400),
    "@long sexagesimal number@": ("1" + ":59" * 4_000, "1" + "0" * 400),
    "@long fraction@": ("0." + "9" * 5_000, "0." + "9" * 5_000),
    "@octal@": ("0o7777777777777777777777777", "tru"),
    "@deep@": ("[" * 90 + "]" * 90, "[" * 90 + "]" * 90),
    "@deeper@": ("[" * 5_000, "[" * 50_000),
    "@deep mapping@": ("{a: " * 5_000, '{"a":' * 50_000),
    "@key that is a list@": ("{[1, 2]: 3}", "{1: 2}"),
    "@key that is null@": ("{null: 3, true: 4, 1.5: 5}", "{null: 3}"),
    "@twice@": ("{a: 1, a: 2}", '{"a": 1, "a": 2}'),
}
_PITFALL = re.compile("""['"]?(@[a-z ]+@)['"]?""")


def as_yaml(data):
    """A YAML text, with pitfalls."""
    text = yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
    return _PITFALL.sub(lambda found: PITFALLS[found[1]][0] if found[1] in PITFALLS else found[0], text)


def as_json(data):
    """A JSON text, with pitfalls."""
    text = json.dumps(data)
    return _PITFALL.sub(lambda found: PITFALLS[found[1]][1] if found[1] in PITFALLS else found[0], text)


def _places(data, place=()):
    """Where there is anything in plain data: keys and numbers, from the outside in."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*place, key)
        yield from _places(value, (*place, key))


@st.composite
def changed(draw, originals, others=values):
    """One of several valid pieces of plain data, changed in a place, seldom in more."""
    data = copy.deepcopy(draw(st.sampled_from(originals)))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 1, 2, 3]))):
        places = list(_places(data))
        if not places:
            return draw(others())
        *outer, key = draw(st.sampled_from(places))
        holder = data
        for part in outer:
            holder = holder[part]
        match draw(st.sampled_from(["other", "other", "gone", "new", "renamed", "within", "twice", "moved"])):
            case "gone":
                del holder[key]
            case "new" if isinstance(holder, dict):
                holder[draw(texts())] = draw(others())
            case "renamed" if isinstance(key, str):
                holder[f"{key[1:]}s"] = holder.pop(key)
            case "within":
                holder[key] = draw(st.sampled_from([[holder[key]], {"name": holder[key]}]))
            case "twice" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case "moved":
                other = draw(st.sampled_from(places))
                value = data
                for part in other:
                    value = value[part] if isinstance(value, dict | list) and _has(value, part) else None
                holder[key] = copy.deepcopy(value)
            case _:
                holder[key] = draw(others())
    return data


def _has(holder, key):
    return key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)


@st.composite
def damaged(draw, written):
    """The bytes of a text, whole or damaged as files are."""
    text = draw(written)
    kind = draw(st.sampled_from(["whole"] * 8 + ["cut", "put in", "bytes", "encoding", "mark", "lines", "empty"]))
    if kind == "put in":
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(texts()) + text[place:]
    content = text.encode("utf-8", "surrogatepass")
    match kind:
        case "cut":
            return content[: draw(st.integers(0, len(content)))]
        case "bytes":
            place = draw(st.integers(0, len(content)))
            return content[:place] + draw(st.binary(max_size=8)) + content[place + draw(st.integers(0, 8)) :]
        case "encoding":
            encoding = draw(st.sampled_from(["utf-16", "utf-32", "latin-1", "cp500", "utf-7"]))
            return text.encode(encoding, "replace")
        case "mark":
            return draw(st.sampled_from([b"\xef\xbb\xbf", b"\xff\xfe", b"\x00"])) + content
        case "lines":
            return content.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"\n\n", b"\n\x00\n", b""])))
        case "empty":
            return draw(st.sampled_from([b"", b"\n", b" ", b"null", b"[]", b"{}", b"---\n---\n", b"%YAML 9.9\n---\n"]))
        case _:
            return content
