"""The pages: links resolve, limits in commands can be parsed, and plots show the committed results."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.loadtool.slo import parse_slo

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
SVG = "{http://www.w3.org/2000/svg}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def texts(image: Path) -> list[str]:
    """Return the labels of an SVG file, in the order in which they are drawn."""
    return ["".join(element.itertext()) for element in ET.parse(image).iter(f"{SVG}text")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{page.name} links to {target}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_limits_in_commands_are_valid(page: Path) -> None:
    for limits in re.findall(r"--slo ([a-z0-9]+=[^\s`)]+)", page.read_text()):
        parse_slo([limits])  # raises for a time without a unit


def test_plots_show_the_committed_results(tmp_path: Path) -> None:
    from benchmarks.plots.__main__ import FIGURES, main  # which imports matplotlib

    result = CliRunner().invoke(main, ["--results", str(ROOT / "benchmarks/results"), "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    for name in FIGURES:
        committed = ROOT / "docs" / "images" / f"{name}.svg"
        assert texts(tmp_path / f"{name}.svg") == texts(committed), f"make plots, and commit docs/images/{name}.svg"


@pytest.mark.parametrize("image", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda image: image.name)
def test_images_follow_the_readers_colour_scheme(image: Path) -> None:
    assert texts(image), "labels are text, which a reader can search"
    assert "prefers-color-scheme: dark" in image.read_text()
