"""Orders for workers from the console."""

import asyncio

import pytest

from baton.protos.worker_pb2 import WORKER_ROLE_BOTH, WORKER_ROLE_DECODE, WORKER_ROLE_PREFILL
from baton.router.console import controls
from baton.router.console.access import host_name
from tests.unit.router.api_keys import bearer
from tests.unit.router.console.controlled_worker import ControlledWorker
from tests.unit.router.rigs.running_router import RunningRouter, running_router, wait_workers


async def order(router: RunningRouter, action: str, worker: ControlledWorker | str, **query: str) -> tuple[int, str]:
    """Give an order; return the status of the response, and its text."""
    address = worker if isinstance(worker, str) else worker.address
    answer = await router.http.post(f"/console/workers/{action}", params={"address": address, **query})
    body = answer.json()
    return answer.status_code, body["error"]["message"] if "error" in body else body["status"]


async def test_workers_are_drained_undrained_and_change_their_role() -> None:
    first, second = ControlledWorker("decode-0"), ControlledWorker("decode-1")
    async with running_router(first, second) as router:
        assert await order(router, "drain", first) == (200, "done")
        await wait_workers(router.http, 1, "draining")
        assert await order(router, "undrain", first) == (200, "done")
        await wait_workers(router.http, 2, "ready")
        assert await order(router, "role", second, role="prefill") == (200, "done")
        assert first.orders == ["drain", "undrain"]
        assert second.orders == [f"role {WORKER_ROLE_PREFILL}"]


@pytest.mark.parametrize(
    ("role", "other", "is_replaceable"),
    [
        (WORKER_ROLE_DECODE, WORKER_ROLE_PREFILL, False),
        (WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE, False),
        (WORKER_ROLE_DECODE, WORKER_ROLE_BOTH, True),
        (WORKER_ROLE_BOTH, WORKER_ROLE_DECODE, True),
        (WORKER_ROLE_BOTH, WORKER_ROLE_PREFILL, False),
    ],
)
async def test_the_last_worker_of_a_role_is_drained_only_by_force(role: int, other: int, is_replaceable: bool) -> None:
    last, rest = ControlledWorker("last", role), ControlledWorker("rest", other)
    async with running_router(last, rest) as router:
        if not is_replaceable:
            status, text = await order(router, "drain", last)
            assert (status, "last is the last" in text, last.orders) == (409, True, [])
        assert await order(router, "drain", last, force=str(not is_replaceable).lower()) == (200, "done")


async def test_a_long_drain_goes_on_after_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "ANSWER_S", 0.01)
    worker, rest = ControlledWorker("decode-0"), ControlledWorker("decode-1")
    worker.may_drain.clear()
    async with running_router(worker, rest) as router:
        assert await order(router, "drain", worker) == (202, "in progress")
        await wait_workers(router.http, 1, "draining")
        status, text = await order(router, "drain", worker)
        assert (status, "previous order" in text) == (409, True)
        assert (await order(router, "undrain", worker))[0] in (200, 202)
        await wait_workers(router.http, 2, "ready")
        assert (await order(router, "drain", worker))[0] == 409  # the first one has not returned
        worker.may_drain.set()


async def test_two_orders_at_once_do_not_take_the_last_workers_of_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "ANSWER_S", 0.01)
    workers = ControlledWorker("decode-0"), ControlledWorker("decode-1")
    for worker in workers:
        worker.may_drain.clear()
    async with running_router(*workers) as router:
        answers = await asyncio.gather(*(order(router, "drain", each) for each in workers))
        assert sorted(status for status, _ in answers) == [202, 409]
        for worker in workers:
            worker.may_drain.set()


async def test_wrong_orders_are_refused() -> None:
    worker, rest = ControlledWorker(), ControlledWorker("decode-1")
    async with running_router(worker, rest) as router:
        for action, query, text in (
            ("stop", {}, "action: must be drain, undrain or role"),
            ("drain", {"address": ""}, "address: must be that of a worker"),
            ("drain", {"address": "127.0.0.1:1"}, "no worker has the address 127.0.0.1:1"),
            ("drain", {"force": "yes"}, "force: must be true or false"),
            ("drain", {"role": "decode"}, "role: must be given for the action role"),
            ("role", {}, "role: must be given for the action role"),
            ("role", {"role": "chef"}, "role: must be prefill, decode or both"),
        ):
            status, message = await order(router, action, query.get("address", worker.address), **query)
            assert (status, text in message) == (400, True), message
        worker.refuses = True
        status, message = await order(router, "drain", worker)
        assert (status, "this worker keeps its state" in message) == (409, True)
        assert (await router.http.get("/console/workers/drain")).status_code == 405
        await worker.stop()
        await wait_workers(router.http, 1, "connecting")
        assert (await order(router, "drain", worker))[0] == 503
        assert not worker.orders


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example:8000"},  # a name that leads to this machine
        {"x-forwarded-for": "203.0.113.7"},  # through a proxy
        {"x-forwarded-host": "baton.example"},
    ],
)
async def test_without_keys_pages_of_other_sites_control_nothing(headers: dict[str, str]) -> None:
    worker, rest = ControlledWorker(), ControlledWorker("decode-1")
    async with running_router(worker, rest) as router:
        query = {"address": worker.address}
        answer = await router.http.post("/console/workers/drain", params=query, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"], worker.orders) == (403, "permission_error", [])
        same = {"origin": router.url, "sec-fetch-site": "same-origin"}
        answer = await router.http.post("/console/workers/drain", params=query, headers=same)
        assert answer.status_code == 200


async def test_other_machines_control_workers_with_an_admin_key_alone() -> None:
    worker, rest = ControlledWorker(), ControlledWorker("decode-1")
    async with running_router(worker, rest, host="0.0.0.0") as router:
        url = router.url.replace("0.0.0.0", "127.0.0.1")
        answer = await router.http.post(f"{url}/console/workers/drain", params={"address": worker.address})
        assert answer.status_code == 403
        await worker.stop()
        await rest.stop()
    async with running_router(
        worker, rest, host="0.0.0.0", admin_api_key=("sk-a",), protect_operations=False
    ) as router:
        url = router.url.replace("0.0.0.0", "127.0.0.1")
        query, headers = {"address": worker.address}, {**bearer("sk-a"), "host": "baton.example"}
        answer = await router.http.post(f"{url}/console/workers/drain", params=query, headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("host", "name"), [("[::1]:80", "::1"), ("localhost:8000", "localhost"), ("127.0.0.1", "127.0.0.1"), ("", "")]
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name
