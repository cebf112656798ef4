"""The documentation as a site: its navigation, and links to files outside of docs/. Needs no MkDocs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.site.boosts import BOOSTS, boost
from scripts.site.links import ROOT, outside_files, site_path, with_site_links
from scripts.site.queries import QUERIES

DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads MkDocs' file, whose tags name Python functions."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def entries(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation in order."""
    if isinstance(nav, str):
        yield nav
    for each in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from entries(each)


def test_every_page_is_in_the_navigation_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    listed = list(entries(settings["nav"]))
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")}
    outside = {site_path(path) for path in outside_files()}
    assert pages - set(listed) == set(), "add these pages to nav in mkdocs.yml"
    assert set(listed) - pages - outside == set(), "no page links to these, or they do not exist"


def test_every_link_of_the_site_resolves() -> None:
    pages = [*DOCS.glob("**/*.md"), *(path for path in outside_files() if path.suffix == ".md")]
    files = {site_path(path) for path in (*outside_files(), *(each for each in DOCS.glob("**/*") if each.is_file()))}
    missing = []
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", with_site_links(page, page.read_text("utf-8")), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)", prose):
            path = (Path("/") / site_path(page)).parent / target
            if not re.match(r"[a-z]+:", target) and path.resolve().relative_to("/").as_posix() not in files:
                missing.append(f"{site_path(page)}: {target}")
    assert missing == []


@pytest.mark.parametrize(
    ("page", "markdown", "expected"),
    [
        (
            "docs/kubernetes.md",
            "[README](../helm/baton/README.md#values)",
            "[README](repository/helm/baton/README.md#values)",
        ),
        ("helm/baton/README.md", "[a](../../docs/ray.md)", "[a](../../../ray.md)"),
        ("docs/decisions/images.md", "[gpu](../gpu.md#the-check) [b](#here)", "[gpu](../gpu.md#the-check) [b](#here)"),
        ("docs/bench.md", "`results` in [`results/`](../benchmarks/results)", "`results` in `results/`"),
        (
            "docs/bench.md",
            "`[x](../README.md)`\n```\n[y](../README.md)\n```",
            "`[x](../README.md)`\n```\n[y](../README.md)\n```",
        ),
        ("docs/index.md", "![p](images/request.svg) [w](https://a.b/c)", "![p](images/request.svg) [w](https://a.b/c)"),
    ],
)
def test_links_are_those_of_the_site(page: str, markdown: str, expected: str) -> None:
    assert with_site_links(ROOT / page, markdown) == expected


def test_boosts_and_queries_are_of_existing_pages() -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")] + [*map(site_path, outside_files())]
    assert [prefix for prefix in BOOSTS if not any(page.startswith(prefix) for page in pages)] == []
    wanted = {target.partition("#")[0].removesuffix(".html") + ".md" for target in QUERIES.values()}
    assert wanted - set(pages) == set()


def test_problems_come_before_decisions() -> None:
    paths = ("troubleshooting.md", "how_to/size_the_pools.md", "api.md", "decisions/images.md")
    assert sorted(paths, key=boost, reverse=True) == [*paths]
