"""What the site shows that lies beside docs/: README as its first page, and the files that pages link to."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# On the site everything lies in one folder; in the repository README looks down into docs/, and its pages look up.
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "SECURITY.md": "SECURITY.md"}
_PAGES |= {"CHANGELOG.md": "CHANGELOG.md"}
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files of the repository that the site needs, with their links as the site has them."""
    for name, page in _PAGES.items():
        files.append(File.generated(config, page, content=_relinked(ROOT / name)))
    for source in sorted((ROOT / "docs").glob("*.md")):
        files.remove(files.src_uris[source.name])
        files.append(File.generated(config, source.name, content=_relinked(source)))
    pages = [ROOT / name for name in _PAGES] + sorted((ROOT / "docs").glob("*.md"))
    linked = {path for page in pages for path in _targets(page) if _is_file_beside(path)}
    for path in sorted(linked):
        inner = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, inner, abs_src_path=str(path)))
    return files


def _targets(page: Path) -> list[Path]:
    return [(page.parent / match[1]).resolve() for match in _LINK.finditer(page.read_text(encoding="utf-8"))]


def _is_file_beside(path: Path) -> bool:
    return path.is_file() and path.suffix != ".md" and ROOT / "docs" not in path.parents


def _relinked(page: Path) -> str:
    def on_site(match: re.Match[str]) -> str:
        path, anchor = (page.parent / match[1]).resolve(), match[2] or ""
        if path.is_dir():  # the site lists no folders
            return f"](#{anchor.lstrip('#')})" if anchor else "](index.md)"
        inner = path.relative_to(ROOT).as_posix()
        return f"]({_PAGES.get(inner, inner.removeprefix('docs/'))}{anchor})"

    return _LINK.sub(on_site, page.read_text(encoding="utf-8"))
