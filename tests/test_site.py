"""The documentation's site asks nothing of other hosts; `make site` looks through what it has built."""

import sys
from pathlib import Path

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "site"))
import without_network

DIAGRAM = '<pre class="mermaid"><code>flowchart LR</code></pre>'
THEME = '<script src="../assets/javascripts/bundle.1.min.js"></script>'


@pytest.mark.parametrize(
    "loads",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script defer src='//cdn.example/x.js'></script>",
        "<script async src=http://cdn.example/x.js></script>",
        '<link rel="stylesheet" href="https://fonts.example/css?family=x">',
        '<link rel="preconnect" href="https://fonts.example">',
        '<img alt="a > b" src="https://shields.example/badge.svg">',
        '<iframe src="https://video.example/x"></iframe>',
        "<style>@import 'https://fonts.example/x.css';</style>",
        '<div style="background: url(https://pictures.example/x.png)"></div>',
    ],
)
def test_what_a_page_loads_of_another_host_is_found(loads):
    assert len(without_network.loaded_from_outside(f"<p>text</p>\n{loads}\n<p>more</p>")) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://dspy.ai">DSPy</a>',
        '<link rel="canonical" href="https://docs.example/page/">',
        '<script src="../assets/x.js"></script><link rel="stylesheet" href="/assets/x.css">',
        '<img src="data:image/svg+xml;base64,AAAA">',
        "<code>lm.default.api_base=http://localhost:8000/v1</code>",
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    ],
)
def test_links_that_a_reader_may_follow_load_nothing(text):
    assert without_network.loaded_from_outside(text) == []


@pytest.fixture
def config(tmp_path: Path) -> MkDocsConfig:
    made = MkDocsConfig()
    made.load_dict({"site_name": "site", "site_dir": str(tmp_path), "docs_dir": str(tmp_path)})
    return made


def shown(html: str, config: MkDocsConfig) -> str:
    """A page as the site gets it."""
    page = Page("Page", File("inner/page.md", None, config.site_dir, use_directory_urls=True), config)
    made: str = without_network.on_post_page(html, page, config)
    (Path(config.site_dir) / "index.html").write_text(made, encoding="utf-8")
    without_network.on_post_build(config)
    return made


def test_a_page_with_a_diagram_loads_the_sites_own_script_before_the_themes(tmp_path, config):
    script = tmp_path / without_network.SCRIPT
    script.parent.mkdir()
    script.write_text("")
    made = shown(DIAGRAM + THEME, config)
    assert made == f'{DIAGRAM}<script src="../../{without_network.SCRIPT}"></script>{THEME}'
    assert shown(THEME, config) == THEME


def test_without_the_script_a_diagram_is_text(config):
    assert shown(DIAGRAM + THEME, config) == DIAGRAM.replace(' class="mermaid"', "") + THEME


def test_a_site_that_would_need_a_network_fails(tmp_path, config):
    script = tmp_path / without_network.SCRIPT
    script.parent.mkdir()
    script.write_text("")
    with pytest.raises(PluginError, match=r"index\.html loads https://cdn\.example/x\.js"):
        shown('<script src="https://cdn.example/x.js"></script>', config)
    with pytest.raises(PluginError, match="would load mermaid from a CDN"):
        shown(DIAGRAM, config)


def test_another_script_than_the_pinned_one_is_refused(tmp_path, monkeypatch):
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\necho other > "$4/other.tgz" && echo other.tgz\n')
    npm.chmod(0o755)
    monkeypatch.setattr(without_network.shutil, "which", lambda _: str(npm))
    with pytest.raises(PluginError, match="SHA-512"):
        without_network._packed()


def test_a_style_sheet_is_looked_through_for_fonts():
    font = "@font-face { src: url(https://fonts.example/x.woff2) }"
    assert without_network.loaded_from_outside(font, ".css") == ["https://fonts.example/x.woff2"]
    assert without_network.loaded_from_outside("a { background: url(data:image/png;base64,AA) }", ".css") == []
