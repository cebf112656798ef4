"""Description of a LoRA adapter."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A loaded adapter, as requests, operators and other workers know it."""

    name: str  # as requests name it
    digest: str  # of its matrices, scales and invocation: workers with equal digests compute the same KV
    rank: int  # the largest of its matrices
    num_bytes: int  # of its matrices
    base_model: str  # named in its files; empty: none
    target_modules: tuple[str, ...]  # last parts of the names of the projections it changes, such as q_proj
