"""One replica: the engine's scheduling, with all steps that are alike taken at once.

1. A sequence comes and waits; it is admitted in order, when there are blocks and a place, with what is cached of it.
2. A step is scheduled as `engine/scheduling/scheduler.py` does it: decodes, prompts begun, sequences that wait.
3. Without a prompt in it the steps after it are the same, until a sequence ends or needs a block: they are one event.
4. What comes meanwhile cuts that short, at the end of the step under way.

So the times are those of an engine that makes every step (`simulation/engine/core.py`), for a fraction of the work.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator

from baton.engine.kv.prefix_cache import CacheChanges
from baton.protos.worker_pb2 import WorkerLoad
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.batch import Batch
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.kv_memory import KVMemory
from baton.simulation.twin.prompt_rate import PromptRate
from baton.simulation.twin.sequence import Sequence
from baton.simulation.twin.step import Chunk, Step

Note = Callable[[], None]  # somebody's `has_advanced` or `has_ended`


class Replica:
    """Owns the sequences and blocks of one worker."""

    def __init__(self, clock: Clock, spec: WorkerSpec, note_change: Callable[[], None]) -> None:
        """`note_change` is called when there is something new to report."""
        self.memory = KVMemory(spec)
        self.busy_s = 0.0  # of steps
        self.num_preemptions = 0
        self._clock = clock
        self._spec = spec
        self._note_change = note_change
        self._waiting: deque[Sequence] = deque()
        self._receiving: dict[Sequence, None] = {}
        self._prefilling: list[Sequence] = []  # in order of their coming
        self._batch = Batch(spec.max_num_seqs, spec.block_size)
        self._held: dict[Sequence, None] = {}  # ended, and kept
        self._step: Step | None = None
        self._num_waiting_tokens = 0  # to compute here, as far as they are not expected in the cache
        self._num_orders = 0
        self._num_prefilled = self._num_generated = 0
        self._prompt_rate = PromptRate(spec)

    @property
    def is_idle(self) -> bool:
        """Whether nobody has anything here."""
        return not (self._held or self.num_waiting or self.num_running)

    @property
    def num_running(self) -> int:
        """Sequences in the batch, or about to be."""
        return len(self._prefilling) + self._batch.num_sequences

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place, for blocks, or for their KV."""
        return len(self._waiting) + len(self._receiving)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute before every sequence decodes."""
        begun = sum(sequence.num_missing for sequence in self._prefilling)
        return self._num_waiting_tokens + begun + self._batch.num_sequences

    @property
    def num_generated(self) -> int:
        """Tokens of output so far, those of the steps under way that are over included."""
        step = self._step
        if step is None or step.step_s <= 0:
            return self._num_generated
        num_over = min(step.num_steps, int((self._clock.now_s - step.begins_s) / step.step_s))
        return self._num_generated + num_over * step.num_decoding

    def next_order(self) -> int:
        """For a sequence that comes now."""
        self._num_orders += 1
        return self._num_orders

    def add(self, sequence: Sequence) -> bool:
        """Takes a sequence; False if too many wait. It must fit into an empty pool with all its output."""
        if len(self._waiting) >= self._spec.max_queue_len:
            return False
        if not sequence.is_receiving:
            num_cached = self.memory.num_cached_tokens(sequence.hashes, sequence.num_tokens)
            sequence.num_queued = sequence.num_tokens - num_cached
            self._num_waiting_tokens += sequence.num_queued
        self._waiting.append(sequence)
        self._wake()
        return True

    def received(self, sequence: Sequence, num_tokens: int, has_first_token: bool) -> None:
        """A receiving sequence's KV is here; what is missing is computed here."""
        del self._receiving[sequence]
        sequence.is_receiving = False
        self.memory.advance(sequence, max(num_tokens, sequence.num_computed))
        if has_first_token:
            sequence.num_tokens += 1
            sequence.num_left -= 1
            self._batch.join(sequence)
        else:
            insort(self._prefilling, sequence, key=_order)
        self._wake()

    def release(self, sequence: Sequence) -> None:
        """Nobody reads the blocks of an ended sequence any more, or one that received its KV is not wanted."""
        self._held.pop(sequence, None)
        self._receiving.pop(sequence, None)
        self.memory.free(sequence)
        self._wake()

    def load(self) -> WorkerLoad:
        """As a worker reports it; its rates are what it has learnt, here taken to be right from its first step on."""
        spec = self._spec
        knows_prompts, knows_decodes = self._num_prefilled > 0, self._num_generated > 0
        return WorkerLoad(
            num_running=self.num_running,
            num_prefills=self._num_prefills(),
            num_waiting=self.num_waiting,
            num_queued_tokens=self.num_queued_tokens,
            num_free_blocks=self.memory.num_free,
            num_blocks=self.memory.num_usable,
            num_generated_tokens=self._num_generated,
            num_prefilled_tokens=self._num_prefilled,
            prefill_tokens_per_s=self._prompt_rate.tokens_per_s,
            decode_step_s=spec.step_s + spec.sequence_s if knows_prompts or knows_decodes else 0.0,
            decode_sequence_s=spec.sequence_s if knows_decodes else 0.0,
            read_bytes_per_s=spec.link_bytes_per_s,
        )

    def take_cache_changes(self) -> CacheChanges:
        """What came to and went from the prefix cache since the last look."""
        return self.memory.take_changes()

    def num_held_tokens(self) -> int:
        """Tokens whose KV running sequences have here, blocks that several share counted once."""
        blocks = {block for sequence in (*self._batch, *self._prefilling) for block in sequence.blocks}
        return len(blocks) * self._spec.block_size

    @property
    def num_unadmitted(self) -> int:
        """Sequences that have no blocks."""
        return len(self._waiting)

    def check_integrity(self) -> None:
        """Asserts that the blocks are held by exactly those that should hold them."""
        holders = [*self._receiving, *self._prefilling, *self._batch, *self._held]
        self.memory.check_integrity(holders)

    def _num_prefills(self) -> int:
        """Sequences whose prompts are computed for others."""
        at_work = (*self._waiting, *self._receiving, *self._prefilling)
        return sum(sequence.keeps_blocks for sequence in at_work)

    def _wake(self) -> None:
        """Begins a step now, or after the one under way."""
        self._note_change()
        if self._step is None:
            self._step = Step.pending()
            self._clock.after(0.0, self._begin_step)
        elif self._step.cut_short(self._clock.now_s):
            self._clock.at(self._step.ends_s, self._end_step, self._step, self._step.num_steps)

    def _begin_step(self) -> None:
        self._step = None
        self._batch.refill()
        self._grow()
        chunks = self._continued_chunks()
        receiving = self._admit(chunks)
        num_decoding = len(self._batch)
        if chunks or num_decoding:
            self._step = Step.of(self._spec, chunks, num_decoding, self._batch, self._clock.now_s)
            self._clock.at(self._step.ends_s, self._end_step, self._step, self._step.num_steps)
        for sequence in receiving:
            sequence.owner.has_blocks()

    def _end_step(self, step: Step, num_steps: int) -> None:
        if step is not self._step or step.num_steps != num_steps:
            return  # it was cut short, or has ended
        self.busy_s += step.seconds
        notes: list[Note] = []
        if step.num_decoding:
            self._batch.tick += num_steps
            self._num_generated += num_steps * step.num_decoding
            notes += [self._ended(sequence) for sequence in self._batch.ended()]
        if step.chunks:
            self._prompt_rate.note(step.chunks)
        for chunk in step.chunks:
            notes += self._computed(chunk)
        self._note_change()
        self._begin_step()  # before anybody hears of this one: what they do is not the engine's time
        for note in notes:
            note()

    def _computed(self, chunk: Chunk) -> Iterator[Note]:
        """A chunk of a prompt is done."""
        sequence = chunk.sequence
        self._num_prefilled += chunk.num_tokens
        self.memory.advance(sequence, sequence.num_computed + chunk.num_tokens)
        if sequence.num_missing == 0:
            self._prefilling.remove(sequence)
            self._num_generated += 1
            sequence.num_tokens += 1
            sequence.num_left -= 1
            if sequence.num_left:
                self._batch.join(sequence)
            else:
                yield self._ended(sequence)
                return
        yield sequence.owner.has_advanced

    def _ended(self, sequence: Sequence) -> Note:
        self.memory.advance(sequence, sequence.num_tokens - 1)
        if sequence.keeps_blocks:
            self._held[sequence] = None
        else:
            self.memory.free(sequence)
        return sequence.owner.has_ended

    def _grow(self) -> None:
        """Gives blocks to those that need one, preempting the last in order while there are none."""
        for sequence in self._batch.full():
            if not sequence.blocks:
                continue  # preempted for one before it
            self.memory.advance(sequence, sequence.num_tokens - 1)
            while sequence.blocks and not self.memory.grow(sequence):
                others = (*self._batch, *self._prefilling)
                self._preempt(max((other for other in others if not other.keeps_blocks), key=_order))
            if sequence.blocks:
                self._batch.plan_growth(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """It loses its blocks, and computes its tokens anew, before all that came after it."""
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
        else:
            self._batch.leave(sequence)
        self.memory.free(sequence)
        sequence.num_computed = sequence.num_stored = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        sequence.num_queued = sequence.num_tokens
        self._num_waiting_tokens += sequence.num_queued
        place = next((i for i, other in enumerate(self._waiting) if other.order > sequence.order), len(self._waiting))
        self._waiting.insert(place, sequence)

    def _continued_chunks(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        budget = self._spec.max_num_batched_tokens - len(self._batch)
        for sequence in sorted(self._prefilling, key=lambda each: each.num_missing > 1):  # a last token is a decode
            if budget <= 0 or len(self._batch) + len(chunks) >= self._spec.max_num_seqs:
                break
            chunks.append(Chunk(sequence, min(sequence.num_missing, budget)))
            budget -= chunks[-1].num_tokens
        return chunks

    def _admit(self, chunks: list[Chunk]) -> list[Sequence]:
        """Admits waiting sequences strictly in order; returns those that will receive their KV."""
        budget = self._spec.max_num_batched_tokens - len(self._batch) - sum(chunk.num_tokens for chunk in chunks)
        receiving: list[Sequence] = []
        while self._waiting:
            sequence = self._waiting[0]
            if not sequence.is_receiving and (budget <= 0 or self.num_running >= self._spec.max_num_seqs):
                break
            if not self.memory.take(sequence, reserve=self.num_running):
                break
            self._waiting.popleft()
            if not sequence.num_preemptions:
                sequence.num_cached = sequence.num_computed
            if sequence.is_receiving:
                self._receiving[sequence] = None
                receiving.append(sequence)
                continue
            self._num_waiting_tokens -= sequence.num_queued
            insort(self._prefilling, sequence, key=_order)
            chunks.append(Chunk(sequence, min(sequence.num_missing, budget)))
            budget -= chunks[-1].num_tokens
        return receiving


def _order(sequence: Sequence) -> int:
    return sequence.order
