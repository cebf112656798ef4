"""Changes of role by the policy: pools reach their sizes without starts, and the deployments' sizes follow."""

import logging
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from random import Random

import grpc
import pytest
import trustme
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.ray.role_changes import PAUSE_S, ChangeFailed, bounded_offset, change_role
from baton.deployment.ray.scaling import PoolsPolicy, logger
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.tls import MutualTls, TlsFiles
from tests.unit.deployment.serve_world import ServeWorld, replaced_call
from tests.unit.rpc.test_tls import write

SETTINGS = ScalingSettings(
    budget_gpus=8, upscale_delay_s=0.0, downscale_delay_s=0.0, shift_delay_s=0.0, turn_s=0.5, drain_s=1.0, flip_s=1.0
)


def policy_of(world: ServeWorld) -> PoolsPolicy:
    """Return a policy that observes this world, with the globals of `scaling.py` replaced for it."""
    names = PoolsPolicy.__init__.__globals__  # those of a class that Ray pickled by value
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(names, "make_observer", lambda _: world)
        return PoolsPolicy(registry="redis://nowhere", budget_gpus=8)


@pytest.fixture(autouse=True)
def _call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PoolsPolicy.__init__.__globals__, "change_role", replaced_call)


def world_of(prefill: int, decode: int) -> tuple[ServeWorld, PoolsPolicy]:
    """Return a world with these pools, which the planner wants as they are, and its policy."""
    world = ServeWorld(SETTINGS)
    world.begin(prefill, decode)
    world.limit(prefill, decode)
    policy = policy_of(world)
    world.step(policy, 3)
    assert world.sizes == (prefill, decode)
    return world, policy


def test_a_pool_grows_by_changes_of_role_and_no_replica_starts() -> None:
    world, policy = world_of(3, 1)
    for sizes, num_changed in (((1, 3), 2), ((2, 2), 3), ((3, 1), 4)):
        world.limit(*sizes)
        world.step(policy, 30)
        assert (world.sizes, world.num_changed, world.num_started) == (sizes, num_changed, 0)
        assert world.targets == {"prefill": 3, "decode": 1}
    assert all(each.role == each.deployment for each in world.workers)  # the ones that had left have returned


def test_workers_with_the_fewest_requests_change_first() -> None:
    world, policy = world_of(3, 1)
    for number, worker in enumerate(world.workers):
        worker.num_running = 9 - number
    world.limit(2, 2)
    world.step(policy)
    assert [address for address, _ in world.calls] == [world.workers[2].address]


def test_a_failed_change_leads_to_stops_and_starts(caplog: pytest.LogCaptureFixture) -> None:
    world, policy = world_of(3, 1)
    world.fails = True
    world.limit(2, 2)
    with caplog.at_level(logging.WARNING, logger.name):
        logger.addHandler(caplog.handler)
        world.step(policy, 30)
        logger.removeHandler(caplog.handler)
    assert (world.sizes, world.num_changed, world.num_started) == ((2, 2), 0, 1)
    assert world.targets == {"prefill": 2, "decode": 2}
    assert len(world.calls) == 1
    assert any("keeps the role prefill; for 300 s" in line for line in caplog.messages)
    world.fails = False
    world.step(policy, round(PAUSE_S))
    world.limit(1, 3)
    world.step(policy, 30)
    assert (world.sizes, world.num_changed, world.num_started) == ((1, 3), 1, 1)


def test_workers_return_when_their_deployment_may_not_grow() -> None:
    world, policy = world_of(3, 1)
    world.bounds = (1, 3)
    world.limit(1, 3)
    world.step(policy, 30)
    world.limit(3, 3)
    world.step(policy, 60)
    assert (world.sizes, world.targets) == ((3, 3), {"prefill": 3, "decode": 3})
    assert all(each.role == each.deployment for each in world.workers)
    assert world.num_started == 2


def test_a_worker_that_is_out_of_sight_changes_no_size() -> None:
    world, policy = world_of(4, 2)
    world.limit(3, 3)
    world.step(policy, 20)
    [changed] = [each for each in world.workers if each.role != each.deployment]
    world.settings = replace(SETTINGS, upscale_delay_s=5.0, downscale_delay_s=300.0, shift_delay_s=300.0)
    world.step(policy, 3)
    for hidden in ({changed.name}, set()):
        world.hidden = hidden
        world.step(policy, 4)
        assert (world.targets, world.sizes) == ({"prefill": 4, "decode": 2}, (3, 3))
    assert world.num_started == 0


def test_a_change_by_hand_changes_no_size_of_a_deployment() -> None:
    world, policy = world_of(3, 1)
    world.workers[0].role, world.workers[0].life = "decode", 2
    world.limit(2, 2)
    world.step(policy, 10)
    assert (world.sizes, world.num_started, world.targets) == ((2, 2), 0, {"prefill": 3, "decode": 1})


@pytest.mark.parametrize("flip_s", [None, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_worker_that_cannot_return_leaves_no_pool_empty(flip_s: float | None, seed: int) -> None:
    world, policy = world_of(2, 1)
    world.random, world.fails = Random(seed), True
    world.workers[0].role, world.workers[0].life = "decode", 2
    world.limit(1, 1)
    world.settings = replace(world.settings, flip_s=flip_s)
    world.step(policy, 30)
    assert world.sizes[0] == 1  # although the decode deployment may not shrink


@pytest.mark.parametrize("seed", range(8))
def test_a_worker_that_returns_leaves_no_pool_empty_meanwhile(seed: int) -> None:
    world, policy = world_of(2, 1)
    world.random = Random(seed)
    world.limit(1, 2)
    world.step(policy, 20)
    assert world.sizes == (1, 2)
    world.limit(1, 1)  # the decode deployment may not shrink, so its other worker returns to the prefill deployment
    for _ in range(30):
        world.step(policy)
        assert all(world.sizes)
    assert (world.sizes, world.targets) == ((1, 1), {"prefill": 1, "decode": 1})


def test_a_worker_that_arrived_while_nothing_was_planned_counts_as_no_start() -> None:
    world, policy = world_of(3, 1)
    world.limit(2, 3)
    world.step(policy, 2)
    usual, world.settings = world.settings, replace(world.settings, budget_gpus=1)  # less than the smallest pools
    while world.sizes != (2, 2):
        world.step(policy)
    world.step(policy)
    world.settings = usual
    world.step(policy)
    assert world.sizes == (2, 2), "the replica that was requested is not ready"
    assert not policy._watches.decode._starts_s


def test_a_cancelled_call_is_a_failed_change() -> None:
    world, policy = world_of(3, 1)
    world.limit(2, 2)
    world.submit = lambda _: _cancelled()  # type: ignore[method-assign]
    world.step(policy, 30)
    assert (world.sizes, world.num_changed, world.num_started) == ((2, 2), 0, 1)


def _cancelled() -> "Future[None]":
    call: Future[None] = Future()
    call.cancel()
    return call


def test_workers_of_earlier_routers_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    world, policy = world_of(3, 1)
    report = world.report

    def without_addresses() -> object:
        found = report()
        for each in found.workers:
            object.__setattr__(each, "address", "")
        return found

    monkeypatch.setattr(world, "report", without_addresses)
    world.limit(2, 2)
    world.step(policy, 30)
    assert (world.sizes, world.calls, world.num_started) == ((2, 2), [], 1)


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4))


@hypothesis_settings(max_examples=20, deadline=None)
@given(SIZES, st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 99), st.integers(4, 8))
@example((1, 3), [(3, 1), (1, 2)], 72, 4)
@example((1, 3), [(3, 1), (1, 1)], 72, 4)
def test_any_sizes_are_reached(begin: tuple[int, int], wanted: list[tuple[int, int]], seed: int, most: int) -> None:
    world = ServeWorld(SETTINGS, bounds=(1, most), random=Random(seed))
    world.begin(*begin)
    world.limit(*begin)
    policy = policy_of(world)
    for sizes in wanted:
        world.limit(*sizes)
        for _ in range(80):
            world.step(policy)
            if world.sizes == sizes and len(world.workers) == sum(sizes):  # no worker is changing its role
                break
        world.step(policy, 5)
        assert world.sizes == sizes
        assert sum(world.targets.values()) == sum(sizes) == len(world.workers)


@pytest.mark.parametrize(
    ("offset", "sizes", "most", "expected"),
    [
        (2, (1, 3), 3, 2),
        (2, (2, 3), 3, 1),
        (2, (3, 3), 3, 0),
        (-2, (3, 3), 4, -1),
        (1, (0, 0), 4, 0),
        (-1, (0, 0), 4, 0),
    ],
)
def test_the_offset_keeps_deployments_within_their_bounds(
    offset: int, sizes: tuple[int, int], most: int, expected: int
) -> None:
    assert bounded_offset(offset, ByPool(*sizes), ByPool(0, 0), ByPool(most, most)) == expected


class RoleServicer(worker_pb2_grpc.WorkerServicer):
    """A worker that becomes a decode worker only."""

    async def ChangeRole(  # noqa: N802
        self, request: worker_pb2.ChangeRoleRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> worker_pb2.ChangeRoleResponse:
        if request.role != worker_pb2.WORKER_ROLE_DECODE or request.timeout_s:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it keeps its role")
        return worker_pb2.ChangeRoleResponse(incarnation="2")


async def test_the_call_to_a_worker() -> None:
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServicer_to_server(RoleServicer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    await change_role(None, address, "decode", 10.0)
    with pytest.raises(ChangeFailed, match="FAILED_PRECONDITION: it keeps its role"):
        await change_role(None, address, "prefill", 10.0)
    with pytest.raises(ChangeFailed, match=r"tls_cert, tls_key, tls_ca: .*/nowhere"):
        await change_role(TlsFiles("/nowhere", "/nowhere", "/nowhere"), address, "decode", 10.0)
    await server.stop(None)
    with pytest.raises(ChangeFailed, match="UNAVAILABLE"):
        await change_role(None, address, "decode", 10.0)


async def test_the_call_to_a_worker_with_mutual_tls(tmp_path: Path) -> None:
    files, server = write(tmp_path, trustme.CA()), grpc.aio.server()
    worker_pb2_grpc.add_WorkerServicer_to_server(RoleServicer(), server)
    address = f"127.0.0.1:{MutualTls(files).bind(server, '127.0.0.1:0')}"
    await server.start()
    await change_role(files, address, "decode", 10.0)
    with pytest.raises(ChangeFailed, match="UNAVAILABLE"):
        await change_role(None, address, "decode", 10.0)
    await server.stop(None)
