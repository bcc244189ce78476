"""Does anything end in a traceback, take for ever, or take all memory, whatever goes in?

    python benchmarks/fuzz.py [TARGET ...] [--minutes 10] [--seed 0] [--json]

Strange inputs are fed to each target for so many minutes. Most are valid ones that were changed in a place or two
(other types, keys that are missing or there twice, deep nesting, endless numbers, halves of characters, other
encodings, files that are cut off, aliases that grow), because arbitrary bytes fail at the first check. The targets are
the tests' own (``tests/fuzzing.py``):

- ``config``: config files and study files, with arguments over them; what is read is built, kept, and read again;
- ``arguments``: the command lines of ``hop``, up to where it would begin to work;
- ``importers``: files of published data sets, which must make a data set without problems, and folders of data sets;
- ``states``: the config and the state of a stored variant, which is then asked a question;
- ``answers``: what a language model's server answers over HTTP, in an evaluation of a program on two questions.

Whatever goes in must end in a result or in one line: a ``UserError`` or a ``ServiceError``. Exits 1 where anything
ended otherwise, took more than ten seconds of the processor, or more than 2 GB of memory beyond what was in use.
"""

import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rich.box import MARKDOWN
from rich.table import Table

from reporting import benchmark_parser, show, user_mistakes

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fuzzing import TARGETS, search  # the tests' own


def main() -> None:
    """Feed the targets and print what they came to; exits 1 where something was no clean error."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each target (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round of inputs (default: 0)")
    options = parser.parse_args()
    if strange := set(options.targets) - set(TARGETS):
        parser.error(f"{strange.pop()}: no such target; known: {', '.join(TARGETS)}")
    logging.disable(logging.CRITICAL)  # what the inputs are told for people
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with user_mistakes():
        found = [search(TARGETS[name], options.minutes, first_seed=options.seed) for name in options.targets or TARGETS]
    table = Table("target", "inputs", "valid", "refused in one line", "failures", "time", box=MARKDOWN)
    lines = []
    for one in found:
        counts = (one.inputs, one.accepted, one.refused, len(one.findings))
        table.add_row(one.target, *map(str, counts), f"{one.seconds / 60:.1f} min")
        for finding in one.findings.values():
            lines.append(f"{one.target}: {finding.count} times {finding.what}\n  {finding.given}")
    show({"fuzzed": [asdict(one) | {"inputs": one.inputs} for one in found]}, options.json, table, *lines)
    sys.exit(int(any(one.findings for one in found)))


if __name__ == "__main__":
    main()
