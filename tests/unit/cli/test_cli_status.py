"""`baton status` against a real HTTP server."""

import json
from typing import Any

from click.testing import CliRunner, Result

from baton.__main__ import main
from baton.deployment.local.ports import free_ports
from tests.unit.cli.small_server import json_reply, serving

PINS = {"num_pins": 2, "num_pinned_blocks": 20, "num_dropped_pins": 1}
WORKERS: dict[str, Any] = {
    "router": {"model": "tiny", "ready": True, "draining": False, "inflight": 3, "policy": {"name": "prefix"}},
    "workers": [
        {
            "worker_id": "prefill-0",
            "role": "prefill",
            "address": "127.0.0.1:21000",
            "state": "ready",
            "incarnation": "abc",
            "load": {
                "num_running": 2,
                "num_waiting": 1,
                "num_free_blocks": 90,
                "num_blocks": 100,
                "step_s": 0.0125,
                **PINS,
            },
            "peer_transports": {},
            "kv_tiers": [
                {
                    "name": "host",
                    "num_bytes": 3 << 29,
                    "capacity_bytes": 4 << 30,
                    "fetched_blocks": 5,
                    "saved_blocks": 6,
                },
                {"name": "redis", "fetched_blocks": 0, "saved_blocks": 6, "slow_fetches": 2, "failures": 1},
            ],
            "cached_blocks": 8,
        },
        {
            "worker_id": "decode-0",
            "role": "decode",
            "address": "127.0.0.1:21001",
            "state": "draining",
            "load": {
                "handovers": 41,
                "handover_failures": 1,
                "checksum_failures": 2,
                "resident_adapters": ["sql"],
            },
            "peer_transports": {"abc": "shared_memory: same host", "abd": "shared_memory: same host"},
            "weights_offload": {
                "stored_bytes": 3 << 29,
                "read_bytes": 5 << 30,
                "wait_s": 2.5,
                "expert_hits": 3,
                "expert_misses": 1,
            },
            "adapters": {"max_loras": 4, "loaded": {**{f"a{place}": "d" for place in range(9)}, "sql": "d"}},
        },
        {"worker_id": "decode-1", "state": "unreachable"},
        {"address": "127.0.0.1:21003", "state": "connecting"},
    ],
}


def status(content: object, *arguments: str, code: int = 200, columns: int = 150) -> Result:
    with serving({"/workers": lambda _: json_reply(content, code)}) as url:
        return CliRunner().invoke(main, ["status", "--url", url, *arguments], env={"COLUMNS": str(columns)})


def row(output: str, worker_id: str) -> list[str]:
    return next(line for line in output.splitlines() if line.startswith(worker_id)).split()


def test_the_table_shows_the_routers_workers() -> None:
    result = status(WORKERS, "--once")
    assert result.exit_code == 0, result.output
    assert row(result.output, "prefill-0")[:8] == [
        *("prefill-0", "prefill", "ready", "127.0.0.1:21000"),
        *("2", "1", "90%", "8"),
    ]
    assert "12.5 ms" in result.output
    assert row(result.output, "decode-0")[2:] == ["draining", "127.0.0.1:21001", "41", "3"]
    assert result.output.count("shared_memory: same host") == 1
    assert row(result.output, "decode-1") == ["decode-1", "unreachable"]
    assert row(result.output, "127.0.0.1:21003") == ["127.0.0.1:21003", "connecting", "127.0.0.1:21003"]
    assert "model tiny  ready  inflight 3" in result.output
    assert "queued tokens" not in result.output  # not reported
    assert "prefill-0: KV store host: 1.5 GiB of 4.0 GiB, 5 blocks fetched, 6 saved\n" in result.output
    assert "prefill-0: 2 pins hold 20 KV blocks (20%), 1 dropped for requests\n" in result.output
    offload = "1.5 GiB stored, 5.0 GiB read, 2.5 s waited, 75% of experts found in memory"
    assert f"decode-0: weights offload {offload}\n" in result.output
    trouble = "2 fetches ended early, 1 writes failed"
    assert f"prefill-0: KV store redis: 0 blocks fetched, 6 saved, {trouble}\n" in result.output


def test_a_narrow_terminal_gets_fewer_but_whole_columns() -> None:
    named = {"workers": WORKERS["workers"][:3]}
    lines = status(named, "--once", columns=80).output.splitlines()
    header = next(line for line in lines if line.startswith("worker"))
    assert header.split() == ["worker", "state", "running", "waiting", "free", "KV", "step", "handovers", "failed"]
    assert len(header) <= 80
    assert row("\n".join(lines), "prefill-0") == ["prefill-0", "ready", "2", "1", "90%", "12.5", "ms"]


def test_json_is_the_servers_response() -> None:
    result = status(WORKERS, "--json")
    assert json.loads(result.output) == WORKERS


def test_a_router_without_workers_has_an_empty_table() -> None:
    result = status({"workers": []}, "--once")
    assert result.exit_code == 0, result.output
    assert "worker" in result.output


def test_a_server_that_is_not_a_router_is_named() -> None:
    result = status({"hello": "world"}, "--once")
    assert result.exit_code == 1
    assert "the response has no list of workers" in result.output
    refused = status({"detail": "Not Found"}, "--once", code=404)
    assert refused.exit_code == 1
    assert "404: Not Found" in refused.output


def test_without_a_server_the_error_says_what_to_do() -> None:
    url = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    result = CliRunner().invoke(main, ["status", "--once", "--url", url])
    assert result.exit_code == 1
    assert f"no server answers at http://{url}" in result.output


def test_dead_processes_are_listed_with_their_restarts() -> None:
    death = {"last_end": "was killed by SIGKILL", "last_end_s_ago": 4.2}
    processes = [
        {"name": "router", "state": "ready", "restarts": 0, "last_end": None, "last_end_s_ago": None},
        {"name": "prefill-0", "state": "ready", "restarts": 2, **death},
        {"name": "decode-0", "state": "starting", "deaths_in_a_row": 1, **death},
        {"name": "decode-1", "state": "waiting", "deaths_in_a_row": 7, "next_start_in_s": 11.6, **death},
        {"name": "decode-2", "state": "waiting", "from": "another version", "last_end": "ended"},
        "no process",
    ]
    lines = status({**WORKERS, "processes": processes}, "--once").output.splitlines()
    assert "prefill-0: was killed by SIGKILL 4 s ago, serves again; restarts: 2" in lines
    assert "decode-0: was killed by SIGKILL 4 s ago; is restarting" in lines
    assert "decode-1: was killed by SIGKILL 4 s ago, death 7 in a row; restarts in 12 s" in lines
    assert not any(line.startswith("router:") for line in lines)


def test_several_models_have_a_line_each_and_a_column() -> None:
    models = [
        {"model": "tiny", "ready": True, "degraded": False, "inflight": 2},
        {"model": "other", "ready": False, "degraded": False, "inflight": 1},
    ]
    named = [{**each, "model": model} for each, model in zip(WORKERS["workers"], ("tiny", "other"), strict=False)]
    router = {**WORKERS["router"], "model": "tiny, other", "models": models}
    result = status({"router": router, "workers": named}, "--once")
    assert "model tiny, other  ready  inflight 3" in result.output
    assert "\ntiny: ready  inflight 2\nother: inflight 1\n" in result.output
    assert row(result.output, "prefill-0")[:3] == ["prefill-0", "tiny", "prefill"]
    assert row(result.output, "decode-0")[:3] == ["decode-0", "other", "decode"]
    one = status({"router": {**router, "models": models[:1]}, "workers": named[:1]}, "--once")
    assert "tiny: " not in one.output
    assert row(one.output, "prefill-0")[:2] == ["prefill-0", "prefill"]


def test_an_autoscalers_plan_is_shown() -> None:
    plan = {"prefill": {"target": 3, "needed": 2}, "decode": {"target": 4, "needed": 4}, "reason": "decode: stays 4"}
    router = {**WORKERS["router"], "models": [{"model": "tiny", "autoscaler": plan}]}
    result = status({**WORKERS, "router": router}, "--once")
    assert "autoscaler: 3 prefill and 4 decode replicas (2 and 4 needed): decode: stays 4" in result.output
    for broken in (None, "x", {"prefill": 3}, {"prefill": {}, "decode": None}):
        router["models"] = [{"model": "tiny", "autoscaler": broken}]
        assert status({**WORKERS, "router": router}, "--once").exit_code == 0


def test_adapters_are_listed_the_resident_ones_first() -> None:
    lines = status(WORKERS, "--once").output.splitlines()
    [line] = [line for line in lines if "adapters" in line]
    assert line == "decode-0: adapters sql *, a0, a1, a2, a3, a4, a5, a6 and 2 more (* resident; 4 in a batch)"
