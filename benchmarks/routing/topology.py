"""Simulated workers behind a router, and their speed."""

from dataclasses import asdict, dataclass
from typing import Literal, Self

import orjson

from baton.simulation.engine.spec import WorkerSpec

Role = Literal["both", "prefill", "decode"]

# A worker at a quarter of the usual speed, so that the overhead of router and processes is small in comparison.
SERVING_SPEC = WorkerSpec(
    num_blocks=2048,
    max_model_len=1 << 15,
    step_s=0.020,
    sequence_s=0.0004,
    prefill_tokens_per_s=5_000.0,
    link_bytes_per_s=2.5e9,
)
# An instant worker, to measure the router.
INSTANT_SPEC = WorkerSpec(
    num_blocks=1 << 15,
    max_model_len=1 << 17,
    max_num_batched_tokens=1 << 17,
    step_s=0.0,
    sequence_s=0.0,
    prefill_tokens_per_s=1e12,
    link_bytes_per_s=1e15,
)


@dataclass(frozen=True, slots=True)
class Topology:
    """Pools of workers: either all colocated, or some prefill and some decode."""

    name: str
    roles: tuple[Role, ...]
    spec: WorkerSpec

    @property
    def is_disaggregated(self) -> bool:
        """Whether there are prefill workers."""
        return "prefill" in self.roles

    @property
    def pools(self) -> dict[Role, list[int]]:
        """Return the indices of the workers of each role."""
        return {
            role: [index for index, each in enumerate(self.roles) if each == role] for role in dict.fromkeys(self.roles)
        }

    def to_json(self) -> str:
        """Return it as a command-line argument."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the output of `to_json`."""
        fields = orjson.loads(text)
        return cls(fields["name"], tuple(fields["roles"]), WorkerSpec(**fields["spec"]))


COLOCATED = Topology("8 colocated", ("both",) * 8, SERVING_SPEC)
DISAGGREGATED = Topology("4 prefill + 4 decode", ("prefill",) * 4 + ("decode",) * 4, SERVING_SPEC)
INSTANT = Topology("2 colocated, instant", ("both",) * 2, INSTANT_SPEC)
