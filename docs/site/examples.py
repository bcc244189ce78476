"""Docstrings' examples as code: sections named ``Example``, and doctests that stand in the text."""

import re

from griffe import Extension, Object

_DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


class Examples(Extension):
    """Writes them as the parser of docstrings wants them."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rewrite the docstring of a module, class or function."""
        if obj.docstring:
            sections = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = _DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", sections)
