"""What of a text may be shown on a terminal."""

# Control characters but for tabs and ends of lines, which steer a terminal, and those that turn the order of what is
# read (Unicode's explicit bidirectional formatting), and halves of a character, which no terminal can show.
_STEERING = dict.fromkeys(
    [
        *range(9),
        *range(11, 32),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ]
)


def printable(text: str) -> str:
    """A text of whatever origin without what would steer a terminal or can't be shown.

    Args:
        text: any text.

    Example:
        >>> from hoptimizer.common.terminal import printable
        >>> printable("Lyon \\x1b[2J is a city.")
        'Lyon [2J is a city.'
    """
    return text.translate(_STEERING)
