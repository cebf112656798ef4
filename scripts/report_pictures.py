"""Takes the pictures of report pages for the documentation, into docs/images.

    .venv/bin/pip install -r tests/integration/console/requirements.txt
    .venv/bin/python scripts/report_pictures.py

Loads the bundled model with `baton bench`, simulates a deployment with `baton simulate`, and opens both pages in the
machine's Chromium.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # the server and the browser are those of the tests
from tests.integration.console.served_page import browser, served_cluster

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WINDOW = {"width": 1000, "height": 900}
BENCH = ("--request-rate=0.5,1,2", "--num-prompts=30", "--random-input-len=256", "--random-output-len=48")
SLO = "--slo=ttft=2s,tpot=80ms"
TRACE = ROOT / "benchmarks" / "data" / "mooncake_conversation.csv"
SIMULATE = ("--trace", str(TRACE), "--slo=ttft=4s,tpot=50ms", "--gpus=6", "--autoscale", "--seconds=300")


async def run(*arguments: str) -> None:
    """Run a command of Baton."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "baton", *arguments, cwd=ROOT)
    if await process.wait():
        raise SystemExit(f"baton {arguments[0]} has failed")


async def take(chromium: Any, page: Path, name: str) -> None:
    """Write pictures of the top of a page, in both colour schemes."""
    for scheme, suffix in (("light", ""), ("dark", "_dark")):
        context = await chromium.new_context(viewport=WINDOW, color_scheme=scheme, device_scale_factor=1.25)
        tab = await context.new_page()
        await tab.goto(page.as_uri())
        picture = IMAGES / f"report_{name}{suffix}.png"
        await tab.screenshot(path=picture)
        print(f"{picture}: {picture.stat().st_size >> 10} KiB")
        await context.close()


async def main() -> None:
    """Make both pages, and take their pictures."""
    with TemporaryDirectory() as directory:
        load, twin = Path(directory) / "load.html", Path(directory) / "twin.html"
        async with served_cluster() as cluster:
            await run("bench", f"--url={cluster.url}", *BENCH, SLO, f"--html={load}")
        await run("simulate", *SIMULATE, f"--html={twin}")
        async with browser() as chromium:
            await take(chromium, load, "bench")
            await take(chromium, twin, "simulate")


if __name__ == "__main__":
    asyncio.run(main())
