"""A model whose every token depends on the whole prefix, read from the blocks themselves.

It keeps, for every slot of the pool, a digest of all tokens up to the one in it. A slot that was never written, was
overwritten, or belongs to another prefix gives another digest, and so other tokens.
"""

from collections.abc import Sequence
from zlib import crc32

from baton.engine.outputs import SampledToken
from baton.engine.request import BlockId, Request
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult

VOCAB = 50


def digest(previous: int, token_id: int) -> int:
    """Digest of a prefix that ends with the token."""
    return crc32(token_id.to_bytes(4, "little"), previous)


def next_token(prefix_digest: int) -> int:
    """The token that follows a prefix."""
    return prefix_digest % VOCAB


def reference(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow a prompt."""
    state = 0
    for token_id in prompt:
        state = digest(state, token_id)
    output = []
    for _ in range(count):
        output.append(next_token(state))
        state = digest(state, output[-1])
    return output


class FakeModel:
    """Slots of digests in place of a KV pool."""

    def __init__(self, num_blocks: int, block_size: int, max_forced: int = 0) -> None:
        """max_forced: tokens at most that follow a sampled one in the same step."""
        self.max_forced = max_forced
        self.slots = [[-1] * block_size for _ in range(num_blocks)]
        self.block_size = block_size

    def run(self, scheduled: Sequence[ScheduledRequest]) -> list[StepResult]:
        """Compute the scheduled tokens."""
        results = []
        for item in scheduled:
            request, start = item.request, item.request.num_computed_tokens
            known = start + item.num_known_tokens
            state = self.compute(request.block_table, request.token_ids, start, known)
            if item.drafts:
                results.append(self.verified(request, known, item.drafts, state))
            else:
                results.append(self.result(state) if item.samples else StepResult())
        return results

    def verified(self, request: Request, start: int, drafts: Sequence[int], state: int) -> StepResult:
        """Compute drafted tokens from `start` on; return the tokens up to the one after the last right draft."""
        token_ids = [*request.token_ids[:start], *drafts]
        end = start + len(drafts)
        states = [
            state,
            *(self.compute(request.block_table, token_ids, place, place + 1) for place in range(start, end)),
        ]
        num_right = 0
        while num_right < len(drafts) and drafts[num_right] == next_token(states[num_right]):
            num_right += 1
        first, *further = [SampledToken(next_token(each)) for each in states[: num_right + 1]]
        return StepResult(first, self.result(states[num_right]).forced, further=further)

    def result(self, state: int) -> StepResult:
        """The token that follows a prefix, and as many of the next ones as the prefix says."""
        tokens = [next_token(state)]
        for _ in range(state // VOCAB % (self.max_forced + 1)):
            state = digest(state, tokens[-1])
            tokens.append(next_token(state))
        return StepResult(SampledToken(tokens[0]), tokens[1:])

    def compute(self, block_table: Sequence[BlockId], token_ids: Sequence[int], start: int, end: int) -> int:
        """Fill the slots of some tokens from the slot before them; return the last digest."""
        state = self.slot(block_table, start - 1) if start else 0
        for position in range(start, end):
            state = digest(state, token_ids[position])
            self.slots[block_table[position // self.block_size]][position % self.block_size] = state
        return state

    def slot(self, block_table: Sequence[BlockId], position: int) -> int:
        """Digest in a position's slot."""
        return self.slots[block_table[position // self.block_size]][position % self.block_size]

    def receive(self, request: Request, end: int) -> None:
        """Fill a receiving request's blocks, as a prefill worker does."""
        self.compute(request.block_table, request.token_ids, request.num_computed_tokens, end)
