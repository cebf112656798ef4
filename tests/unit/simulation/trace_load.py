"""Random traces with shared prefixes, for the twin and for exact engines."""

import random

from baton.engine.kv.block_hash import pack_hashes, root_hash
from baton.simulation.twin.trace_request import TraceRequest
from tests.unit.simulation.exact_twin import TokenRequest


def random_load(
    seed: int,
    num_requests: int,
    *,
    block_size: int = 16,
    seconds: float = 10.0,
    max_prompt: int = 600,
    max_output: int = 60,
    num_prefixes: int = 4,
) -> list[TokenRequest]:
    """Return requests at random times; most begin with one of a few prefixes."""
    rng = random.Random(seed)
    prefixes = [rng.choices(range(1000), k=rng.randint(1, max_prompt)) for _ in range(num_prefixes)]
    load: list[TokenRequest] = []
    for due_s in sorted(rng.uniform(0, seconds) for _ in range(num_requests)):
        shared = rng.choice(prefixes)[: rng.randint(0, max_prompt)]
        tokens = (shared + rng.choices(range(1000), k=rng.randint(1, max_prompt)))[:max_prompt]
        hashes = pack_hashes(root_hash(), tokens, block_size)
        load.append(TokenRequest(TraceRequest(due_s, len(tokens), rng.randint(1, max_output), hashes), tokens))
    return load
