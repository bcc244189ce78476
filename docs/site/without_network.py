"""The built site asks nothing of other hosts: diagrams are drawn by a script of its own, and its pages are checked."""

import base64
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

# The flowcharts and sequence diagrams of mermaid, without the larger kinds; MIT.
PACKAGE = "@mermaid-js/tiny@11.17.2"
INTEGRITY = "PmFr1c5cSfNf5AngLLR98DrbvR4U5KeD7I+hQkGqG5w5Veu3QT4dG0qu9f99cpn/sKj2XxRBK0q7EL6hr9NY/A=="  # SHA-512
MEMBER = "package/dist/mermaid.tiny.js"
SCRIPT = "assets/mermaid.tiny.js"

_DIAGRAM = '<pre class="mermaid">'
# The theme's own script comes last in a page. It would fetch mermaid from a CDN if it didn't find one.
_THEME = re.compile(r'(?=<script src="[^"]*assets/javascripts/bundle\.)')
# Attributes whose addresses a browser loads by itself; links that a reader may follow are none of them.
_LOADING = {"src", "srcset", "poster", "data", "background"}
_NOT_LOADED = {"canonical", "next", "prev", "alternate"}  # links of a page's head
_OUTSIDE = re.compile(r"\s*((?:https?:)?//\S+)", re.IGNORECASE)
_STYLE = re.compile(r"(?:@import\s+|\burl\()\s*[\"']?((?:https?:)?//[^\"'\s)]+)", re.IGNORECASE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the script that draws the diagrams, of the pinned package of npm."""
    try:
        files.append(File.generated(config, SCRIPT, content=_member(_packed())))
    except OSError as error:
        print(f"diagrams stay text: {error}", file=sys.stderr)
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let pages that have a diagram load the script before the theme looks for it; without it a diagram is text."""
    if _DIAGRAM not in output:
        return output
    if not (Path(config.site_dir) / SCRIPT).exists():  # files are copied before pages are made
        return output.replace(_DIAGRAM, "<pre>")
    return _THEME.sub(f'<script src="{get_relative_url(SCRIPT, page.url)}"></script>', output, count=1)


def on_post_build(config: MkDocsConfig) -> None:
    """Look through the pages and style sheets for what a browser would ask other hosts for."""
    site = Path(config.site_dir)
    for file in sorted(path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")):
        text, name = file.read_text(encoding="utf-8"), file.relative_to(site)
        if outside := loaded_from_outside(text, file.suffix):
            raise PluginError(f"{name} loads {outside[0]}; the site must work without a network")
        if _DIAGRAM in text and SCRIPT not in text:
            raise PluginError(f"{name} has a diagram, for which the theme would load mermaid from a CDN")


def loaded_from_outside(text: str, suffix: str = ".html") -> list[str]:
    """The addresses of other hosts that a page or style sheet makes a browser load."""
    if suffix == ".css":
        return _STYLE.findall(text)
    page = _Loads()
    page.feed(text)
    return page.outside


class _Loads(HTMLParser):
    """Collects what a page loads of other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at the attributes of an element."""
        known = {name: value or "" for name, value in attrs}
        loading = _LOADING if tag != "link" or known.get("rel", "") in _NOT_LOADED else {"href"}
        self.outside += [match[1] for name in loading if (match := _OUTSIDE.match(known.get(name, "")))]
        self.outside += _STYLE.findall(known.get("style", ""))

    def handle_data(self, data: str) -> None:
        """Look at a style sheet within the page."""
        if self.cdata_elem == "style":
            self.outside += _STYLE.findall(data)


def _packed() -> bytes:
    """The package's archive, as it is pinned; an ``OSError`` where there is no npm, or no registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(f"there is no npm, which fetches {PACKAGE}")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", PACKAGE, "--pack-destination", folder, "--silent", "--prefer-offline"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            said = (result.stderr.strip().splitlines() or ["no reason given"])[0]
            raise ConnectionError(f"npm could not fetch {PACKAGE}: {said}")
        archive = (Path(folder) / result.stdout.strip().splitlines()[-1]).read_bytes()
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != INTEGRITY:
        raise PluginError(f"{PACKAGE} is not the pinned one: its SHA-512 is another")
    return archive


def _member(archive: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        script = opened.extractfile(MEMBER)
        assert script is not None  # the digest says what is in it
        return script.read()
