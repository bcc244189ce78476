"""What is fed strange inputs, by name, and how: ``search(TARGETS["config"], minutes=1)``."""

from fuzz_answers import ANSWERS, answers
from fuzz_search import Target, Unclean, bounded, feed, search
from fuzz_targets import (
    COMMAND_LINES,
    CONFIG_FILES,
    DATA_FILES,
    VARIANTS,
    arguments,
    config_files,
    data_files,
    variants,
)

__all__ = ["TARGETS", "Unclean", "bounded", "feed", "search"]

TARGETS = {
    target.name: target
    for target in (
        Target("config", CONFIG_FILES, config_files),
        Target("arguments", COMMAND_LINES, arguments),
        Target("importers", DATA_FILES, data_files),
        Target("states", VARIANTS, variants),
        Target("answers", ANSWERS, answers),
    )
}
