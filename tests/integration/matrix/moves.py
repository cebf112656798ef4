"""The columns of the matrix: each move sends a cluster's requests and returns their outputs."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from baton.deployment.local.ports import free_ports
from baton.protos import worker_pb2
from tests.integration.handover.test_expert_parallel import rendezvous
from tests.integration.matrix.cluster import POOL_BYTES, Cluster, Member
from tests.integration.matrix.directed_router import DirectedRouter, Route, until
from tests.integration.matrix.exchange import Exchange
from tests.integration.together import together

Run = Callable[[Cluster], Awaitable[Sequence[Exchange]]]

BLOCK_SIZE = 16
NUM_SEEN = 8  # tokens of each completion in front of a move
NUM_IN_FLIGHT = 8  # prompts of which some are computed when their worker dies
NUM_CROWDED = 4  # requests in a pool with room for two
DRAIN_S = 0.01
TENSOR_PARALLEL = ("--tensor-parallel=2",)


@dataclass(frozen=True, slots=True)
class Move:
    """A way of a request through the workers."""

    name: str
    run: Run
    meaning: str  # for the page
    flags: tuple[str, ...] = ()  # of workers that are refused where the move is


async def local(cluster: Cluster) -> Sequence[Exchange]:
    """Compute the prompts on the decode worker."""
    decode = await cluster.decode()
    async with cluster.router(Route((decode.name,)), decode) as router:
        exchanges = await router.run(cluster.spec.features, cluster.new_salt())
    assert {each.count("handed-over") for each in exchanges} == {0}
    await check_drafted(decode, cluster)
    return exchanges


async def handover(transport: str, chosen: str, cluster: Cluster) -> Sequence[Exchange]:
    """Hand the KV of prompts over with one transport."""
    flag = f"--transport={transport}"
    prefill = await cluster.shared(f"prefill {transport}", "prefill", flag)
    decode = await cluster.shared(f"decode {transport}", "decode", flag)
    async with cluster.router(Route((decode.name,), (prefill.name,)), prefill, decode) as router:
        exchanges = await router.run(cluster.spec.features, cluster.new_salt())
    for each in exchanges:
        assert each.headers["x-baton-kv-transport"] == chosen
        assert each.count("handed-over") > 0
    return exchanges


async def prefix_hit(cluster: Cluster) -> Sequence[Exchange]:
    """Find the prompts in the decode worker's prefix cache."""
    decode = await cluster.decode()
    async with cluster.router(Route((decode.name,)), decode) as router:
        salt = cluster.new_salt()
        first = await router.run(cluster.spec.features, salt)
        exchanges = await router.run(cluster.spec.features, salt)
    assert all(each.count("cached") > 0 for each in exchanges)
    return [*first, *exchanges]


async def pull(cluster: Cluster) -> Sequence[Exchange]:
    """Pull the prompts' prefixes from a third worker to the prefill worker, which hands them over."""
    prefill, decode = await cluster.pair()
    holder = await cluster.shared("other", "decode")
    async with cluster.router(Route((holder.name,)), prefill, decode, holder) as router:
        salt = cluster.new_salt()
        await router.run(cluster.spec.features, salt)
        router.direct(Route((decode.name,), (prefill.name,), holder.name))
        exchanges = await router.run(cluster.spec.features, salt)
    for each in exchanges:
        assert each.headers["x-baton-prefill"] == prefill.name
        assert each.count("cached") > 0  # by no other worker than the third
        assert each.count("handed-over") > 0
    return exchanges


async def preemption(cluster: Cluster) -> Sequence[Exchange]:
    """Run four requests at a time in a pool that has no room for them."""
    decode = await cluster.decode()
    block_bytes = -(-POOL_BYTES // (await decode.process.describe()).num_blocks)
    small_pool = f"--kv-cache-memory-bytes={cluster.spec.small_pool_blocks * block_bytes}"
    exchanges: list[Exchange] = []
    async with (
        cluster.fresh("decode", small_pool) as crowded,
        cluster.router(Route((crowded.name,)), crowded) as router,
    ):
        num_preempted = 0
        for feature in cluster.spec.features:
            exchanges += await router.run([feature] * NUM_CROWDED, cluster.new_salt())
            load = await crowded.process.wait_idle()
            assert load.num_preemptions > num_preempted, f"{feature.name}: the pool was meant to be too small"
            num_preempted = load.num_preemptions
    return exchanges


async def decode_killed(cluster: Cluster) -> Sequence[Exchange]:
    """Kill the decode worker of running requests."""
    prefill, decode = await cluster.pair()
    async with (
        cluster.fresh("decode") as victim,
        cluster.router(Route((victim.name, decode.name), (prefill.name,)), prefill, decode, victim) as router,
    ):
        async with router.in_flight(cluster.spec.features, cluster.new_salt()) as exchanges:
            await begun(exchanges)
            victim.process.child.kill()
        assert await router.counter("failovers") >= cluster.num_completions
    await check_drafted(decode, cluster)
    return exchanges


async def prefill_killed(cluster: Cluster) -> Sequence[Exchange]:
    """Kill the prefill worker in the middle of handovers."""
    prefill, decode = await cluster.pair()
    features = cluster.spec.features * -(-NUM_IN_FLIGHT // len(cluster.spec.features))
    num_failures = (await decode.process.wait_idle()).handover_failures
    async with (
        cluster.fresh("prefill", "--max-num-batched-tokens=24", "--max-num-seqs=16") as victim,
        cluster.router(Route((decode.name,), (victim.name, prefill.name)), prefill, decode, victim) as router,
        router.in_flight(features, cluster.new_salt()) as exchanges,
    ):
        await until(lambda: any(each.num_tokens for each in exchanges))
        victim.process.child.kill()
    assert (await decode.process.wait_idle()).handover_failures > num_failures
    return exchanges


async def drained(cluster: Cluster) -> Sequence[Exchange]:
    """Drain the decode worker of running requests."""
    prefill, decode = await cluster.pair()
    leaving = await cluster.shared("other", "decode")
    async with cluster.router(Route((leaving.name, decode.name), (prefill.name,)), prefill, decode, leaving) as router:
        async with router.in_flight(cluster.spec.features, cluster.new_salt()) as exchanges:
            await begun(exchanges)
            await leaving.process.worker.Drain(worker_pb2.DrainRequest(timeout_s=DRAIN_S))
        await check_handed_off(router, cluster)
    await leaving.process.worker.Undrain(worker_pb2.UndrainRequest())
    return exchanges


async def role_change(cluster: Cluster) -> Sequence[Exchange]:
    """Make the decode worker of running requests a prefill worker, which then hands prompts over."""
    prefill, decode = await cluster.pair()
    changing = await cluster.shared("other", "decode")
    async with cluster.router(
        Route((changing.name, decode.name), (prefill.name,)), prefill, decode, changing
    ) as router:
        async with router.in_flight(cluster.spec.features, cluster.new_salt()) as exchanges:
            await begun(exchanges)
            to_prefill = worker_pb2.ChangeRoleRequest(role=worker_pb2.WORKER_ROLE_PREFILL, timeout_s=DRAIN_S)
            await changing.process.worker.ChangeRole(to_prefill)
        await check_handed_off(router, cluster)
        await router.wait_workers(3)
        router.direct(Route((decode.name,), (changing.name,)))
        later = await router.run(cluster.spec.features, cluster.new_salt())
        assert {each.headers["x-baton-prefill"] for each in later} == {changing.name}
    back = worker_pb2.ChangeRoleRequest(role=worker_pb2.WORKER_ROLE_DECODE, timeout_s=DRAIN_S)
    await changing.process.worker.ChangeRole(back)
    return [*exchanges, *later]


async def restart(cluster: Cluster) -> Sequence[Exchange]:
    """Restart the worker, whose successor fetches the prompts' KV from the disk."""
    directory = cluster.directory / cluster.new_salt()
    directory.mkdir()
    salt, flag = cluster.new_salt(), f"--kv-disk={directory}"
    async with cluster.fresh("decode", flag) as worker, cluster.router(Route((worker.name,)), worker) as router:
        first = await router.run(cluster.spec.features, salt)
        num_blocks = sum(each.num_prompt_tokens // BLOCK_SIZE for each in first)
        async for update in worker.process.updates():
            if update.load.tiers[0].saved_blocks >= num_blocks:
                break
    async with cluster.fresh("decode", flag) as worker, cluster.router(Route((worker.name,)), worker) as router:
        exchanges = await router.run(cluster.spec.features, salt)
    assert all("disk=" in each.headers["x-baton-stored-tokens"] for each in exchanges)
    return [*first, *exchanges]


async def tensor_parallel(cluster: Cluster) -> Sequence[Exchange]:
    """Decode on two tensor-parallel ranks what a prefill worker of one rank hands over."""
    prefill = await cluster.prefill()
    decode = await cluster.shared("tensor parallel", "decode", *TENSOR_PARALLEL)
    async with cluster.router(Route((decode.name,), (prefill.name,)), prefill, decode) as router:
        exchanges = await router.run(cluster.spec.features, cluster.new_salt())
    assert all(each.count("handed-over") > 0 for each in exchanges)
    return exchanges


async def expert_parallel(cluster: Cluster) -> Sequence[Exchange]:
    """Decode on two workers that share the experts."""
    prefill = await cluster.prefill()
    [port] = free_ports("127.0.0.1", 1)
    flags = ("--expert-parallel=2", f"--rendezvous=127.0.0.1:{port}")
    async with rendezvous(port), together(*(cluster.fresh("decode", *flags) for _ in range(2))) as ranks:
        route = Route(tuple(each.name for each in ranks), (prefill.name,), in_turn=True)
        async with cluster.router(route, prefill, *ranks) as router:
            exchanges = await router.run(cluster.spec.features * 2, cluster.new_salt())
    assert all(each.count("handed-over") > 0 for each in exchanges)
    return exchanges


async def begun(exchanges: Sequence[Exchange]) -> None:
    """Wait until each completion has tokens; none may have ended."""
    await until(lambda: all(each.num_tokens >= NUM_SEEN for each in exchanges))
    assert not any(each.is_finished for each in exchanges), "outputs are meant to be longer"


async def check_drafted(decode: Member, cluster: Cluster) -> None:
    """Check that some drafted tokens were right, if the feature is drafts."""
    load = await decode.process.wait_idle()
    assert (sum(load.accepted_by_position) > 0) == bool(cluster.spec.decode_flags)


async def check_handed_off(router: DirectedRouter, cluster: Cluster) -> None:
    """Check that another worker continued each completion."""
    assert await router.counter("requests_handed_off") == cluster.num_completions
    assert await router.counter("failovers") == 0


HANDOVERS = (("shared memory", "shared_memory", "shared_memory"), ("TCP", "tcp", "tcp"), ("NIXL", "nixl", "nixl"),
             ("staged", "staged", "staged_shared_memory"))  # fmt: skip
MOVES = (
    Move("local", local, "the decode worker computes the prompt"),
    *(
        Move(name, partial(handover, transport, chosen), f"a prefill worker computes it; KV over {name}")
        for name, transport, chosen in HANDOVERS
    ),
    Move("pull", pull, "the prefill worker pulls the prefix from a third worker"),
    Move("prefix hit", prefix_hit, "the prompt is in the prefix cache"),
    Move("preemption", preemption, "the pool is too small for the running requests"),
    Move("decode killed", decode_killed, "SIGKILL while the requests decode"),
    Move("prefill killed", prefill_killed, "SIGKILL during handovers"),
    Move("drained", drained, "the decode worker is drained while the requests run"),
    Move("role change", role_change, "the decode worker becomes a prefill worker while the requests run"),
    Move("restart", restart, "the worker restarts; KV from `--kv-disk`", ("--kv-disk=.",)),
    Move("TP 2", tensor_parallel, "two tensor-parallel ranks decode", TENSOR_PARALLEL),
    Move(
        "EP 2",
        expert_parallel,
        "two decode workers share the experts",
        ("--expert-parallel=2", "--rendezvous=127.0.0.1:1"),
    ),
)
