"""A request: its tokens, and how many of them have KV in this engine."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

from baton.engine.kv.block_hash import BlockHash, extend_hashes, root_hash
from baton.engine.kv.origin import NO_ORIGINS, KVOrigin
from baton.engine.lora.activation import first_adapted, root_adapter, with_adapter_mark
from baton.engine.pooling.config import PoolingParams
from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.image import Image, hash_marks

RequestId = NewType("RequestId", str)
BlockId = NewType("BlockId", int)

NULL_BLOCK = BlockId(0)  # pads block tables, and stands for blocks behind a window; never allocated


class RequestStatus(Enum):
    """State of a request in the scheduler."""

    WAITING = "waiting"  # in the queue, holds no block
    RECEIVING = "receiving"  # holds blocks that a remote prefill is filling
    RUNNING = "running"  # holds blocks and takes part in steps
    FINISHED = "finished"  # ended; holds blocks only if `keep_blocks`


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, weakref_slot=True, eq=False)
class Request:
    """A request in an engine; once added, only the scheduler changes it."""

    request_id: RequestId
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int
    sampling: SamplingParams
    cache_salt: str = ""
    images: tuple[Image, ...] = ()  # in the prompt, in the order of their tokens; kept for recomputation
    adapter: str | None = None  # name of its LoRA adapter
    adapter_digest: str = ""  # of its contents; set when the engine takes the request, which may expect one
    adapter_start: int | None = None  # first token that the adapter changes; see `first_adapted`. None: not known yet
    adapter_number: int = 0  # of the registered adapter that it uses; 0: none
    adapter_matrices: int = 0  # number of that adapter's matrices, while it is in the batch
    tenant: str = ""  # its requests share bounds on the engine's threads
    priority: int = 0  # lower is served earlier
    receives_kv: bool = False  # the prompt is prefilled remotely and its KV will be received
    receives_whole: bool = False  # all of it, so blocks behind the last token's windows are not needed
    num_marked_tokens: int = 0  # leading tokens that the client expects to send again
    keep_blocks: bool = False  # blocks stay held after the request ends, until released
    pooling: PoolingParams | None = None  # ends with an embedding of the prompt; None: it generates tokens
    computes_all: bool = False  # the pooling needs hidden states of all tokens, so cached KV is not enough
    block_table: list[BlockId] = field(default_factory=list)  # of the first KV group
    other_tables: list[list[BlockId]] = field(default_factory=list)  # of the other KV groups
    state_blocks: list[BlockId] = field(default_factory=list)  # where steps write the recurrent state
    checkpoint_blocks: list[BlockId] = field(default_factory=list)  # cached state that the next step reads, if any
    lacks_checkpoint: bool = False  # its KV was received, and no recurrent state is cached near its end
    block_hashes: list[BlockHash] = field(default_factory=list)  # of the full blocks; grows as blocks fill
    num_computed_tokens: int = 0  # tokens whose KV is in the block table
    # The first of them whose hidden states no step has kept: their KV was cached or received, or drafts did not pay.
    num_without_states: int = 0
    kv_origins: frozenset[KVOrigin] = NO_ORIGINS  # other models that computed some of its KV
    num_cached_tokens: int = 0  # found in the prefix cache on arrival; updated at first admission
    num_idle_blocks: int = 0  # the cached blocks that no request held on arrival: admission takes them
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0
    num_prompt_logprobs: int = 0  # prompt positions whose logprobs were reported
    arrival: int = 0  # arrival number, assigned by the scheduler

    @property
    def block_tables(self) -> list[list[BlockId]]:
        """The block table of each KV group."""
        return [self.block_table, *self.other_tables]

    @property
    def current_state(self) -> list[BlockId]:
        """The blocks of the recurrent state after the computed tokens."""
        return self.checkpoint_blocks or self.state_blocks

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.token_ids)

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens that this engine must still compute; those that were cached on its arrival count as computed."""
        if self.status is RequestStatus.FINISHED or self.receives_kv:
            return 0
        expects_cached = self.status is RequestStatus.WAITING and self.num_preemptions == 0
        return self.num_tokens - (self.num_cached_tokens if expects_cached else self.num_computed_tokens)

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether cached KV is not enough: a pooling needs all hidden states, prompt logprobs need logits."""
        reports_prompt = self.sampling.prompt_logprobs is not None
        is_due = reports_prompt and self.num_prompt_logprobs < self.num_prompt_tokens - 1
        return is_due or self.computes_all

    def hash_blocks(self, block_size: int) -> list[BlockHash]:
        """Return the hashes of the full blocks of all tokens known so far."""
        start = self.first_adapted
        root = root_hash(self.cache_salt, root_adapter(self.adapter_id, start))
        marks = with_adapter_mark(hash_marks(self.images, block_size), self.adapter_digest, start, block_size)
        extend_hashes(self.block_hashes, self.token_ids, block_size, root, marks)
        return self.block_hashes

    @property
    def adapter_id(self) -> str:
        """Digest of its adapter for block hashes; until the digest is known, one that no block has; empty: none."""
        return "" if self.adapter is None else self.adapter_digest or f"{self.adapter} of unknown contents"

    @property
    def first_adapted(self) -> int:
        """First token that its adapter changes, which depends on the prompt if the adapter is an activated one."""
        if self.adapter_start is None:
            self.adapter_start = first_adapted(self.adapter_digest, self.token_ids[: self.num_prompt_tokens])
        return self.adapter_start

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class FinishRule:
    """End conditions of the model: its EOS tokens and its context length."""

    eos_token_ids: frozenset[int]
    max_model_len: int

    def reason(self, request: Request, token_id: int) -> FinishReason | None:
        """Return why the request ends if `token_id` is appended; None if it continues."""
        sampling = request.sampling
        num_output_tokens = request.num_output_tokens + 1
        is_eos = self._is_eos(request, token_id)
        if is_eos and sampling.grammar is not None:  # below min_tokens only if no other token was allowed
            return FinishReason.STOP
        if num_output_tokens >= sampling.min_tokens and (is_eos or token_id in sampling.stop_token_ids):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.ends_by_length(request) else None

    def is_end(self, request: Request, token_id: int) -> bool:
        """Return whether a token ends the request, or would if its output were longer."""
        return self._is_eos(request, token_id) or token_id in request.sampling.stop_token_ids

    def _is_eos(self, request: Request, token_id: int) -> bool:
        return token_id in self.eos_token_ids and not request.sampling.ignore_eos

    def ends_by_length(self, request: Request) -> bool:
        """Return whether the next token is the last, whichever token it is."""
        return self.num_left(request) <= 1

    def num_left(self, request: Request) -> int:
        """Return how many tokens the request may still generate."""
        return min(request.sampling.max_tokens - request.num_output_tokens, self.max_model_len - request.num_tokens)
