"""The committed builds of the pages."""

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUFFIXES = {".html", ".js", ".css", ".txt"}


@pytest.mark.parametrize(
    ("folder", "path", "suffixes", "max_bytes"),
    [("console", "console", SUFFIXES | {".svg"}, 400_000), ("api_docs", "docs", SUFFIXES, 600_000)],
)
def test_the_build_is_small_and_complete(folder: str, path: str, suffixes: set[str], max_bytes: int) -> None:
    built = ROOT / "router" / folder / "built"
    files = [each for each in built.rglob("*") if each.is_file()]
    assert {each.suffix for each in files} == suffixes
    assert sum(len(gzip.compress(each.read_bytes())) for each in files) < max_bytes
    page = (built / "index.html").read_text(encoding="utf-8")
    for each in (built / "assets").iterdir():
        assert each.name == "licenses.txt" or f"{path}/assets/{each.name}" in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_the_build_is_current() -> None:
    script = ROOT / "scripts" / "build_console.sh"
    checked = subprocess.run(["sh", script, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
