"""Clusters without doctors or workers, and URLs that are not a router's."""

import asyncio

from baton.deployment.local.ports import free_ports
from baton.doctor.cluster import RouterAddress, examine_cluster
from baton.doctor.finding import Level
from baton.doctor.report import Section
from tests.unit.cli.small_server import json_reply, serving
from tests.unit.simulation.served import served


def examine(content: object) -> list[Section]:
    with serving({"/workers": lambda _: json_reply(content)}) as url:
        return examine_cluster(RouterAddress(url), 64, lambda _: None)


def checks(section: Section) -> dict[str, Level]:
    return {finding.check: finding.level for finding in section.findings}


async def test_simulated_workers_have_no_doctor() -> None:
    async with served("prefill", "decode") as workers:
        rows = [{"address": worker.simulated.address, "state": "ready"} for worker in workers]
        content = {"router": {"ready": True, "registry": {"connected": True}}, "workers": rows}
        sections = await asyncio.to_thread(examine, content)
    assert [section.about for section in sections][1:] == [
        "prefill worker prefill-0",
        "decode worker decode-1",
        "workers compared",
    ]
    assert checks(sections[1]) == {"doctor-not-served": Level.WARNING}
    assert checks(sections[3]) == {"workers-alike": Level.OK}


def test_a_stopped_worker_is_unreachable() -> None:
    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    content = {"router": {"ready": False}, "workers": [{"address": address, "state": "connecting"}]}
    router, worker = examine(content)
    assert checks(router) == {"worker-not-connected": Level.FAILURE, "router-not-ready": Level.FAILURE}
    assert checks(worker) == {"worker-unreachable": Level.FAILURE}


def test_a_url_that_is_not_a_router_is_a_finding() -> None:
    (section,) = examine({"hello": "world"})
    assert checks(section) == {"router-unreachable": Level.FAILURE}
    port = free_ports("127.0.0.1", 1)[0]
    (section,) = examine_cluster(RouterAddress(f"http://127.0.0.1:{port}"), 64, lambda _: None)
    assert checks(section) == {"router-unreachable": Level.FAILURE}


def test_processes_that_died_recently_are_findings() -> None:
    processes = [
        {"name": "router", "state": "ready", "restarts": 0, "last_end": None},
        {"name": "prefill-0", "state": "waiting", "last_end": "was killed by SIGKILL", "last_end_s_ago": 3.0},
        {"name": "decode-0", "state": "ready", "last_end": "was killed by SIGKILL", "last_end_s_ago": 60.0},
        {"name": "decode-1", "state": "ready", "last_end": "was killed by SIGKILL", "last_end_s_ago": 6000.0},
    ]
    _, section = examine({"router": {"ready": True}, "workers": [], "processes": processes})
    assert [(each.check, each.level, each.found.split(":")[0]) for each in section.findings] == [
        ("process-down", Level.FAILURE, "prefill-0"),
        ("process-restarted", Level.WARNING, "decode-0"),
    ]
