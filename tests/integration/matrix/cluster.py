"""Workers of one spec, started when a move first needs them, and the outputs of an undisturbed one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.protos import worker_pb2
from baton.settings.names import Role
from tests.adapters import ALL_TARGETS, make_adapter
from tests.draft_checkpoints import with_noise
from tests.integration.matrix.checkpoints import MAKERS
from tests.integration.matrix.directed_router import POLL_S, DirectedRouter, Route, directed_router
from tests.integration.matrix.exchange import Exchange
from tests.integration.matrix.feature import ClusterSpec
from tests.integration.worker_process import WorkerProcess, worker_process

POOL_BYTES = 32 << 20
COMMON = (
    *("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=32"),
    f"--kv-cache-memory-bytes={POOL_BYTES}",
)
DRAFT_MODEL = "DRAFT_MODEL"  # in flags: replaced by the path of a draft model
ADAPTER = "adapter"
DRAFT_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Member:
    """A started worker and its id."""

    name: str
    process: WorkerProcess

    async def wait_adapter(self) -> None:
        """Wait until it has loaded an adapter."""
        while not (await self.process.worker.ListAdapters(worker_pb2.ListAdaptersRequest())).adapters:
            await asyncio.sleep(POLL_S)


class Cluster:
    """Owner of a model's files, of the workers that moves share, and of the reference outputs."""

    def __init__(self, spec: ClusterSpec, directory: Path, stack: AsyncExitStack) -> None:
        """`stack`: ends the shared workers."""
        self.spec = spec
        self.directory = directory
        self.model = MAKERS[spec.model](directory)
        self._stack = stack
        self._shared: dict[str, Member] = {}
        self._reference: Sequence[Exchange] = ()
        self._num_salts = 0
        self._router_options: dict[str, object] = {"model": str(self.model), **spec.router}
        if spec.router.get("enable_lora"):
            options = {"alora_invocation_tokens": spec.invocation} if spec.invocation else {}
            # Those of the experts, too, which an activated adapter cannot change.
            targets = ALL_TARGETS[:4] if spec.invocation else ALL_TARGETS
            path = make_adapter(self.model, directory / ADAPTER, targets, seed=1, **options)
            self._router_options["lora_modules"] = (f"{ADAPTER}={path}",)
        self._draft = ""
        if any(DRAFT_MODEL in flag for flag in spec.decode_flags):
            self._draft = str(with_noise(self.model, directory / "draft", DRAFT_NOISE))

    @property
    def num_completions(self) -> int:
        """Number of completions of one request for each feature."""
        return sum(each.num_completions for each in self.spec.features)

    def new_salt(self) -> str:
        """Return a salt that no request has used."""
        self._num_salts += 1
        return f"salt {self._num_salts}"

    @asynccontextmanager
    async def fresh(self, role: Role, *flags: str) -> AsyncIterator[Member]:
        """Run a worker of its own, in addition to the shared ones."""
        decode_flags = self.spec.decode_flags if role == "decode" else ()
        given = (*COMMON, f"--max-model-len={self.spec.longest}", *self.spec.flags, *decode_flags, *flags)
        given = tuple(each.replace(DRAFT_MODEL, self._draft) for each in given)
        async with worker_process(role, self.model, self.directory, *given) as process:
            yield Member((await process.describe()).worker_id, process)

    async def shared(self, name: str, role: Role, *flags: str) -> Member:
        """Return the worker of this name; start it with the first call."""
        if name not in self._shared:
            self._shared[name] = await self._stack.enter_async_context(self.fresh(role, *flags))
        return self._shared[name]

    async def pair(self) -> tuple[Member, Member]:
        """Return the prefill and the decode worker that most moves use."""
        return await self.prefill(), await self.decode()

    async def prefill(self) -> Member:
        """Return the prefill worker of the pair."""
        return await self.shared("prefill", "prefill")

    async def decode(self) -> Member:
        """Return the decode worker of the pair."""
        return await self.shared("decode", "decode")

    @asynccontextmanager
    async def router(self, route: Route, *members: Member) -> AsyncIterator[DirectedRouter]:
        """Run a router of some workers."""
        addresses = [each.process.address for each in members]
        async with directed_router(addresses, route, **self._router_options) as router:
            if "lora_modules" in self._router_options:
                await router.wait_model(ADAPTER)
                for each in members:
                    await each.wait_adapter()
            yield router

    async def reference(self) -> Sequence[Exchange]:
        """Return the output of each feature's request, alone on one worker that has cached no prefix of it."""
        if not self._reference:
            async with self._undisturbed() as alone, self.router(Route((alone.name,)), alone) as router:
                exchanges = [await router.run([each], self.new_salt()) for each in self.spec.features]
            self._reference = [each for (each,) in exchanges]
            assert not any(each.count("cached") for each in self._reference)
        return self._reference

    @asynccontextmanager
    async def _undisturbed(self) -> AsyncIterator[Member]:
        """Yield the decode worker, which no request has used yet; if it drafts, or if a completion finds the prefix of
        another one of its request, a worker that does neither.
        """
        if not self.spec.decode_flags and self.num_completions == len(self.spec.features):
            yield await self.decode()
            return
        async with self.fresh("both", "--no-enable-prefix-caching") as alone:
            yield alone


@asynccontextmanager
async def running_cluster(spec: ClusterSpec, directory: Path) -> AsyncIterator[Cluster]:
    """Own a cluster's workers."""
    async with AsyncExitStack() as stack:
        yield Cluster(spec, directory, stack)
