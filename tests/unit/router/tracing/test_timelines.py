"""Timelines of recent requests: what a router keeps, and where it finds them."""

import asyncio
import gc
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from baton.router.auth.api_key import digest_of, new_key
from baton.router.process_socket import ProcessSocket
from baton.router.tracing.request_trace import RequestTrace
from baton.router.tracing.timeline import Timeline
from baton.router.tracing.timeline_group import TimelineGroup
from baton.router.tracing.timelines import ANY_OWNER, MAX_LISTED, MAX_SAME_ID, TimelineQuery, Timelines
from baton.rpc.tracing.context import TraceContext
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker
from tests.unit.router.tracing.test_traces import complete
from tests.unit.router.tracing.traced_cluster import TracedCluster, traced_cluster


def begun(request_id: str, owner: str = "") -> RequestTrace:
    """Return the trace of a running request."""
    return RequestTrace("chat", request_id, TraceContext(1, 2, is_sampled=False), None, owner)


def ended(request_id: str, owner: str = "") -> RequestTrace:
    """Return the trace of a request that has ended."""
    trace = begun(request_id, owner)
    trace.close()
    return trace


def timeline_in(timeline: Timeline | None) -> Timeline:
    """Return a timeline that was found."""
    assert timeline is not None
    return timeline


def found(kept: Timelines, query: TimelineQuery) -> Timeline:
    """Return a timeline that is kept or running."""
    return timeline_in(kept.find(query))


async def timeline(cluster: TracedCluster, request_id: str) -> dict[str, Any]:
    """Return the timeline of a request. It is kept when the response has been sent."""
    response = await cluster.router.http.get(f"/timelines/{request_id}")
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_timeline_has_the_times_of_router_and_workers_without_a_collector() -> None:
    async with traced_cluster(None, "prefill", "decode", keep_timelines=2) as cluster:
        usage = (await complete(cluster, {"x-request-id": "one/a"})).json()["usage"]
        found = await timeline(cluster, quote("one/a", safe=""))
    spans = {(span["name"], span["where"]): span for span in found["spans"]}
    assert spans.keys() == {
        *((name, "router") for name in ("text_completion bundled_model", "admission", "tokenize", "plan", "attempt")),
        *((name, "decode-1") for name in ("decode", "queue", "kv_transfer")),
        *((name, "prefill-0") for name in ("prefill", "queue", "compute")),
    }
    assert [span["depth"] for span in found["spans"]] == [0, 1, 1, 1, 1, 2, 3, 3, 4, 5, 5]
    assert (found["request_id"], found["model"], found["sampled"]) == ("one/a", "bundled_model", False)
    total_s = found["duration_s"]
    assert all(-0.01 <= span["start_s"] <= total_s for span in found["spans"])
    prefill, transfer = spans["prefill", "prefill-0"], spans["kv_transfer", "decode-1"]
    assert transfer["start_s"] <= prefill["start_s"] + 1e-6
    assert prefill["attributes"]["baton.computed_tokens"] == str(usage["prompt_tokens"])
    assert found["attributes"]["gen_ai.usage.output_tokens"] == 6


async def test_a_router_keeps_the_last_timelines() -> None:
    async with traced_cluster(None, "both", keep_timelines=2) as cluster:
        for request_id in ("one", "two", "three", "two"):
            await complete(cluster, {"x-request-id": request_id})
        statuses = [
            (await cluster.router.http.get(f"/timelines/{name}")).status_code for name in ("one", "two", "three")
        ]
    assert statuses == [404, 200, 200]


async def test_a_time_chooses_among_requests_with_the_same_id() -> None:
    async with traced_cluster(None, "both", keep_timelines=9) as cluster:
        for num_tokens in (2, 3):
            await complete(cluster, {"x-request-id": "one"}, max_tokens=num_tokens)
        last = await timeline(cluster, "one")
        times = last["same_id_begun_at"]
        first = await timeline(cluster, f"one?begun_at={times[0]}")
        times_refused = ("yesterday", "nan", "-1")
        refused = [await cluster.router.http.get(f"/timelines/one?begun_at={each}") for each in times_refused]
    assert [each["attributes"]["gen_ai.usage.output_tokens"] for each in (first, last)] == [2, 3]
    assert (first["begun_at"], last["begun_at"]) == tuple(times)
    assert [each.status_code for each in refused] == [400] * 3
    assert "begun_at" in refused[0].json()["error"]["message"]


def test_timelines_are_bounded_in_bytes() -> None:
    names = [TimelineQuery("", f"request-{number}") for number in range(10)]
    roomy, tight = Timelines(10), Timelines(10, max_bytes=1200)
    for name in names:
        roomy.keep(ended(name.request_id))
        tight.keep(ended(name.request_id))
    assert all(map(roomy.find, names))
    kept = [timeline for timeline in map(tight.find, names) if timeline is not None]
    assert kept
    assert sum(len(orjson.dumps(timeline)) for timeline in kept) <= 1200
    assert tight.find(names[-1])
    assert not tight.find(names[0])


def test_a_running_request_is_found_until_it_ends_or_is_dropped() -> None:
    kept, key = Timelines(2), TimelineQuery("", "one")
    kept.keep(ended("one"))
    trace = begun("one")
    kept.begin(trace)
    assert [found(kept, each)["running"] for each in (key, TimelineQuery(ANY_OWNER, "one"))] == [True] * 2
    trace.close()
    kept.keep(trace)
    assert found(kept, key)["running"] is False
    kept.begin(begun("two"))  # its front end drops it
    gc.collect()
    assert kept.find(TimelineQuery("", "two")) is None
    assert [each.id for each in kept.recent] == ["one", "one"]


def test_an_administrator_finds_the_last_request_with_an_id_of_any_tenant() -> None:
    kept = Timelines(9)
    for owner, tokens in (("an-owner", 1), ("another", 2)):
        trace = ended("one", owner)
        trace.root.begun_s += tokens
        trace.root.attributes["gen_ai.usage.output_tokens"] = tokens
        kept.keep(trace)
    assert kept.find(TimelineQuery("", "one")) is None
    assert found(kept, TimelineQuery(ANY_OWNER, "one"))["attributes"]["gen_ai.usage.output_tokens"] == 2
    assert kept.find(TimelineQuery(ANY_OWNER, "two")) is None


def test_an_administrator_finds_the_request_that_began_last() -> None:
    kept, traces = Timelines(9), [begun("one", owner) for owner in ("an-owner", "another", "an-owner")]
    for number, trace in enumerate(traces):
        trace.root.attributes["number"] = number
        trace.root.begun_s += number
        kept.begin(trace)
        assert found(kept, TimelineQuery(ANY_OWNER, "one"))["attributes"]["number"] == number


def test_requests_with_the_same_id_are_all_kept_and_the_one_that_began_last_is_found() -> None:
    kept, traces = Timelines(9), [begun("one") for _ in range(3)]
    for number, trace in enumerate(traces):
        trace.root.attributes["number"] = number
        trace.root.begun_s += number
        kept.begin(trace)
    for number in (2, 0):  # the first one ends last, and the second one runs on
        traces[number].close()
        kept.keep(traces[number])
    times = [trace.begun_at for trace in traces]
    newest = found(kept, TimelineQuery("", "one"))
    assert (newest["attributes"]["number"], newest["same_id_begun_at"]) == (2, times)
    for number, time in enumerate(times):
        chosen = found(kept, TimelineQuery("", "one", time))
        assert (chosen["attributes"]["number"], chosen["running"]) == (number, number == 1)
        assert chosen["same_id_begun_at"] == times


def test_a_repeated_id_takes_no_others_place() -> None:
    kept = Timelines(10 * MAX_SAME_ID)
    kept.keep(ended("other"))
    kept.keep(ended("one", "another tenant"))
    for _ in range(2 * MAX_SAME_ID):
        kept.keep(ended("one"))
    assert kept.find(TimelineQuery("", "other")) is not None
    assert len(found(kept, TimelineQuery("", "one"))["same_id_begun_at"]) == MAX_SAME_ID
    assert len(found(kept, TimelineQuery(ANY_OWNER, "one"))["same_id_begun_at"]) == MAX_SAME_ID + 1
    every = sorted(each.owner for each in kept._kept.values())
    assert (len(every), sum(map(len, kept._numbers.values()))) == (MAX_SAME_ID + 2, MAX_SAME_ID + 2)


def test_the_list_of_requests_with_the_same_id_is_bounded() -> None:
    kept, traces = Timelines(9), [begun("one") for _ in range(2 * MAX_LISTED)]
    for number, trace in enumerate(traces):
        trace.root.begun_s += number
        kept.begin(trace)
    times = [trace.begun_at for trace in traces]
    assert found(kept, TimelineQuery("", "one", times[0]))["begun_at"] == times[0]
    assert found(kept, TimelineQuery("", "one"))["same_id_begun_at"] == times[-MAX_LISTED:]


def test_a_recent_request_names_its_own_timeline_among_others_of_the_same_millisecond() -> None:
    kept, traces = Timelines(9), [begun("one") for _ in range(5)]
    for number, trace in enumerate(traces):
        trace.root.begun_s = traces[0].root.begun_s + number / 10_000
        trace.close()
        kept.keep(trace)
    times = [each.begun_at for each in kept.recent]
    assert [found(kept, TimelineQuery("", "one", time))["begun_at"] for time in times] == times
    assert times == [trace.begun_at for trace in traces]


def test_a_recent_request_whose_client_left_is_marked() -> None:
    kept, gone = Timelines(9), begun("two")
    gone.note_client_gone()
    gone.close()
    kept.keep(ended("one"))
    kept.keep(gone)
    assert [(each.id, each.client_gone) for each in kept.recent] == [("one", False), ("two", True)]


async def test_a_running_requests_timeline_has_the_routers_spans_so_far() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, keep_timelines=2) as router:
        body, headers = {"prompt": "The cat sat", "max_tokens": 3}, {"x-request-id": "one"}
        request = asyncio.create_task(router.http.post("/v1/completions", json=body, headers=headers))
        async with asyncio.timeout(20):
            while True:
                found = (await router.http.get("/timelines/one")).json()
                attempts = [span for span in found.get("spans", ()) if span["name"] == "attempt"]
                if attempts and attempts[0]["events"]:
                    break
        assert (found["running"], attempts[0]["running"], found["spans"][0]["running"]) == (True, True, True)
        assert [span["running"] for span in found["spans"] if span["name"] in ("admission", "tokenize")] == [False] * 2
        assert attempts[0]["events"][0]["name"] == "first_token"
        worker.go_on.set()
        assert (await request).status_code == 200
        async with asyncio.timeout(20):
            while (found := (await router.http.get("/timelines/one")).json())["running"]:
                pass
        assert not any(span["running"] for span in found["spans"])


async def test_an_admin_key_finds_the_timelines_of_all_tenants(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    plain, other, admin = keys.add("plain"), keys.add("other"), keys.add("operator", admin=True)
    async with traced_cluster(None, "both", keep_timelines=9, api_keys_file=str(keys.path)) as cluster:
        await complete(cluster, {"x-request-id": "one", **bearer(plain)})
        statuses = [
            (await cluster.router.http.get("/timelines/one", headers=bearer(key))).status_code
            for key in (plain, other, admin)
        ]
    assert statuses == [200, 404, 200]


async def test_an_admin_key_finds_another_tenants_request_by_its_time_also_if_it_used_the_id_itself(
    tmp_path: Path,
) -> None:
    keys = TestKeys(tmp_path)
    plain, admin = bearer(keys.add("plain")), bearer(keys.add("operator", admin=True))
    async with traced_cluster(None, "both", keep_timelines=9, api_keys_file=str(keys.path)) as cluster:
        for key in (plain, admin):
            await complete(cluster, {"x-request-id": "one", **key})
        first, own = [(await cluster.router.http.get("/timelines/one", headers=key)).json() for key in (plain, admin)]
        path = f"/timelines/one?begun_at={first['begun_at']}"
        by_time = (await cluster.router.http.get(path, headers=admin)).json()
        others = (await cluster.router.http.get(f"/timelines/one?begun_at={own['begun_at']}", headers=plain)).json()
    assert by_time["trace_id"] == first["trace_id"] != own["trace_id"]
    assert by_time["same_id_begun_at"] == [first["begun_at"], own["begun_at"]]
    assert (others["trace_id"], others["same_id_begun_at"]) == (first["trace_id"], [first["begun_at"]])


async def test_a_router_without_timelines_names_the_option() -> None:
    async with traced_cluster(None, "both") as cluster:
        await complete(cluster, {"x-request-id": "one"})
        response = await cluster.router.http.get("/timelines/one")
    assert response.status_code == 404
    assert "--keep-timelines" in response.json()["error"]["message"]


async def test_timelines_need_a_key_if_the_router_has_keys() -> None:
    async with traced_cluster(None, "both", keep_timelines=2, api_key=("secret",)) as cluster:
        headers = {"authorization": "Bearer secret"}
        await complete(cluster, {"x-request-id": "one", **headers})
        without = await cluster.router.http.get("/timelines/one")
        with_key = await cluster.router.http.get("/timelines/one", headers=headers)
    assert (without.status_code, with_key.status_code) == (401, 200)


async def test_a_tenant_sees_the_timelines_of_its_own_requests(tmp_path: Path) -> None:
    names, keys = ("one", "another"), [new_key() for _ in range(2)]
    entries = [{"name": name, "sha256": digest_of(key.encode()).hex()} for name, key in zip(names, keys, strict=True)]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": entries}))
    own, others = ({"authorization": f"Bearer {key}"} for key in keys)
    async with traced_cluster(None, "both", keep_timelines=9, api_keys_file=str(file)) as cluster:
        await complete(cluster, {"x-request-id": "request", **own})
        refused = await cluster.router.http.get("/timelines/request", headers=others)
        await complete(
            cluster, {"x-request-id": "request", **others}, max_tokens=2
        )  # replaces nothing of another tenant
        found = [await cluster.router.http.get("/timelines/request", headers=each) for each in (own, others)]
    assert refused.status_code == 404
    assert [each.json()["attributes"]["gen_ai.usage.output_tokens"] for each in found] == [6, 2]


async def test_the_newest_of_the_processes_timelines_with_one_id_is_found(tmp_path: Path) -> None:
    kept = [Timelines(2) for _ in range(3)]
    for number in (1, 0, 2):  # the last request reached process 2
        trace = ended("one")
        trace.root.attributes["process"] = number
        trace.root.begun_s += (1, 0, 2).index(number)
        kept[number].keep(trace)
    groups = [TimelineGroup(tmp_path, number, 3, timelines) for number, timelines in enumerate(kept)]
    async with groups[0], groups[1], groups[2]:
        for owner in ("", ANY_OWNER):
            newest = [timeline_in(await group.find(TimelineQuery(owner, "one"))) for group in groups]
            assert [each["attributes"]["process"] for each in newest] == [2, 2, 2]
            [times, *others] = [each["same_id_begun_at"] for each in newest]
            assert (len(times), others) == (3, [times, times])
        for time, number in zip(times, (1, 0, 2), strict=True):
            chosen = timeline_in(await groups[0].find(TimelineQuery("", "one", time)))
            assert (chosen["attributes"]["process"], chosen["same_id_begun_at"]) == (number, times)
    assert timeline_in(await groups[0].find(TimelineQuery("", "one")))["attributes"]["process"] == 0


async def test_a_timeline_that_its_process_did_not_send_whole_is_left_out(tmp_path: Path) -> None:
    async def dies(line: str) -> bytes:
        return b'{"request_id":"one","begun_at":17'

    own, key = Timelines(2), TimelineQuery("", "one")
    async with TimelineGroup(tmp_path, 0, 2, own) as group, ProcessSocket(tmp_path, "timelines", 1, 2, dies):
        assert await group.find(key) is None
        own.keep(ended("one"))
        assert await group.find(key) == own.find(key)


async def test_processes_that_share_a_port_find_each_others_timelines(tmp_path: Path) -> None:
    kept = [Timelines(2) for _ in range(3)]
    one = TimelineQuery("an-owner", "one")
    kept[1].keep(ended("one", "an-owner"))
    groups = [TimelineGroup(tmp_path, number, 3, timelines) for number, timelines in enumerate(kept)]
    async with groups[0], groups[1]:  # the third process has not started
        timeline = timeline_in(await groups[0].find(one))
        assert timeline["request_id"] == "one"
        assert await groups[0].find(TimelineQuery("an-owner", "two")) is None
        assert await groups[0].find(TimelineQuery("", "one")) is None
        assert await groups[0].find(TimelineQuery(ANY_OWNER, "one")) == timeline
    assert await groups[0].find(one) is None
