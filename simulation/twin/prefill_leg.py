"""The part of a request's life at its prefill worker."""

from collections.abc import Sequence as Ordered
from typing import Protocol

from baton.engine.kv.block_hash import BlockHash
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.router import Route
from baton.simulation.twin.sequence import Sequence
from baton.simulation.twin.worker import Worker


class Receiver(Protocol):
    """Who wants the prompt."""

    def prefilled(self, num_cached_tokens: int, arrives_s: float, leg: "PrefillLeg") -> None:
        """All of it is computed, and here at `arrives_s`; `leg.release` lets it go."""
        ...

    def prefill_refused(self) -> None:
        """None of it will be computed."""
        ...


class PrefillLeg:
    """Owns the sequence at the prefill worker; its blocks go over the decode worker's link as they are computed."""

    def __init__(self, clock: Clock, route: Route, receiver: Receiver, num_known_tokens: int) -> None:
        """`num_known_tokens`: of the prompt, that the decode worker has."""
        assert route.prefill is not None
        self._clock = clock
        self._worker: Worker = route.prefill
        self._source = route.source
        self._decode = route.decode
        self._number = route.number
        self._receiver = receiver
        self._block_size = route.decode.description.block_size
        self._num_announced = num_known_tokens // self._block_size  # blocks that the decode worker has, or will have
        self._arrives_s = clock.now_s
        self._sequence: Sequence | None = None

    def begin(self, num_prompt_tokens: int, hashes: Ordered[BlockHash]) -> None:
        """The decode worker's call comes."""
        worker, replica = self._worker, self._worker.replica
        if worker.draining_s is not None:
            self._receiver.prefill_refused()
            return
        worker.taken.append(self._number)
        self._sequence = Sequence(
            order=replica.next_order(),
            number=self._number,
            hashes=hashes,
            num_prompt_tokens=num_prompt_tokens,
            num_left=1,
            owner=self,
            is_receiving=self._num_pullable(num_prompt_tokens, hashes) > 0,
            keeps_blocks=True,
        )
        if not replica.add(self._sequence):
            self._receiver.prefill_refused()

    def release(self) -> None:
        """Nobody reads its blocks any more."""
        assert self._sequence is not None
        self._worker.replica.release(self._sequence)

    def has_blocks(self) -> None:
        """It has room for the prefix that it pulls."""
        sequence = self._sequence
        assert sequence is not None
        num_tokens = self._num_pullable(sequence.num_prompt_tokens, sequence.hashes)
        num_blocks = max(0, num_tokens - sequence.num_computed) // self._block_size
        self._clock.at(self._worker.link.reserve(num_blocks), self._has_pulled, num_tokens)

    def has_advanced(self) -> None:
        """A chunk is computed: its whole blocks can be read."""
        assert self._sequence is not None
        self._announce(self._sequence.num_computed // self._block_size)

    def has_ended(self) -> None:
        """The last chunk is computed, and the token behind it sampled."""
        sequence = self._sequence
        assert sequence is not None
        self._announce(-(-sequence.num_prompt_tokens // self._block_size))
        self._receiver.prefilled(sequence.num_cached, self._arrives_s, self)

    def _num_pullable(self, num_prompt_tokens: int, hashes: Ordered[BlockHash]) -> int:
        """Tokens that the source has and this worker lacks, from the prompt's first on; 0 if it has no more."""
        if self._source is None:
            return 0
        there = self._source.replica.memory.num_cached_tokens(hashes, num_prompt_tokens)
        here = self._worker.replica.memory.num_cached_tokens(hashes, num_prompt_tokens)
        return there if there > here else 0

    def _has_pulled(self, num_tokens: int) -> None:
        assert self._sequence is not None
        self._sequence.num_cached = max(num_tokens, self._sequence.num_cached)
        self._worker.replica.received(self._sequence, num_tokens, has_first_token=False)

    def _announce(self, num_blocks: int) -> None:
        if num_blocks > self._num_announced:
            self._arrives_s = self._decode.link.reserve(num_blocks - self._num_announced)
            self._num_announced = num_blocks
