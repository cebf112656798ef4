"""`baton plan` with routers' reports in a real Redis."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from baton.cli.plan import command
from baton.membership.registry.factory import open_registry
from baton.membership.registry.router_report import RouterReport, encode_report
from tests.redis_server import redis_server
from tests.unit.membership.registry.registry_members import DEADLINE_S, reporting
from tests.unit.membership.registry.router_reports import router_report, traffic_report, worker_report

WORKERS = worker_report("prefill-0", "prefill"), worker_report()
REPORT = router_report(*WORKERS, traffic=traffic_report(num_requests=600))


async def planned(directory: Path, reports: list[RouterReport], *flags: str) -> Result:
    """Run the command with a registry that holds these reports."""
    async with redis_server(directory) as server, AsyncExitStack() as stack:
        registry = open_registry(server.url)
        for number, report in enumerate(reports):
            text = encode_report(report)
            await stack.enter_async_context(reporting(registry, f"router-{number}", lambda text=text: text))
        async with asyncio.timeout(DEADLINE_S):
            while len(await registry.reports.read()) < len(reports):
                await asyncio.sleep(0.02)
        (directory / "url").write_text(server.url)
        result = await asyncio.to_thread(CliRunner().invoke, command, [f"--registry-file={directory / 'url'}", *flags])
        await stack.aclose()
        await registry.close()
        return result


async def test_the_needed_workers_are_printed(tmp_path: Path) -> None:
    result = await planned(tmp_path, [REPORT])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("needed: ")
    assert result.output.endswith("decode workers; ready: 1 and 1\n")


async def test_an_explanation_has_a_line_for_each_part(tmp_path: Path) -> None:
    result = await planned(tmp_path, [REPORT], "--explain", "--slo=ttft=2s,tpot=40ms", "--gpus=4")
    assert [line.split(": ")[0] for line in result.output.splitlines()] == [
        "needed",
        "measured",
        "believed",
        "needed",
        "prefill",
        "decode",
    ]
    assert "of 2 s and TPOT" in result.output


@pytest.mark.parametrize(
    ("reports", "flags", "text"),
    [
        ([], [], "have routers this --registry?"),
        ([REPORT, router_report(*WORKERS, model="other")], [], "several models"),
        ([REPORT], ["--slo=ttft=1"], "has no unit"),
        ([REPORT], ["--model=other"], "no router reports"),
    ],
)
async def test_what_is_missing_or_wrong_is_named(
    tmp_path: Path, reports: list[RouterReport], flags: list[str], text: str
) -> None:
    result = await planned(tmp_path, reports, *flags)
    assert result.exit_code != 0
    assert text in result.output
    assert "Traceback" not in result.output
