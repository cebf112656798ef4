"""Hooks of MkDocs (mkdocs.yml): files outside of docs/, lists as on GitHub, figures without a request to others."""

from pathlib import Path

from markdown import Markdown
from markdown.blockprocessors import build_block_parser
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from scripts.site.boosts import boost
from scripts.site.links import ROOT, outside_files, site_path, with_site_links

MERMAID = "assets/mermaid.min.js"
VENDORED = ROOT / ".venv" / "docs" / "package" / "dist" / "mermaid.min.js"


class ListsAsOnGitHub(Extension):
    """An indent of two spaces continues an item of a list; Python-Markdown's default is four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.tab_length = 2
        md.parser = build_block_parser(md)  # whose processors take the length when they are made


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the extension, in front of those that add to the parser."""
    config.markdown_extensions.insert(0, ListsAsOnGitHub())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the linked files outside of docs/, and Mermaid."""
    for path in sorted(outside_files()):
        files.append(File.generated(config, site_path(path), abs_src_path=str(path)))
    if VENDORED.exists():  # `make docs-check` does without it
        files.append(File.generated(config, MERMAID, abs_src_path=str(VENDORED)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files of the repository links within the site, and set the page's boost in the search."""
    page.meta.setdefault("search", {"boost": boost(page.file.src_uri)})
    return with_site_links(Path(page.file.abs_src_path or ""), markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load Mermaid where there is a figure; the theme would load it from a content delivery network."""
    if 'class="mermaid"' not in output or not VENDORED.exists():
        return output
    script = f'<script src="{get_relative_url(MERMAID, page.url)}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)
