"""The committed build of the page."""

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "router" / "console" / "built"
MAX_BYTES = 400_000  # compressed


def test_the_build_is_small_and_complete() -> None:
    files = [path for path in BUILT.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".html", ".js", ".css", ".svg", ".txt"}
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MAX_BYTES
    page = (BUILT / "index.html").read_text(encoding="utf-8")
    for path in (BUILT / "assets").iterdir():
        assert path.name == "licenses.txt" or f"console/assets/{path.name}" in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_the_build_is_current() -> None:
    script = ROOT / "scripts" / "build_console.sh"
    checked = subprocess.run(["sh", script, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
