"""A request on its way through the router, and the deltas of its completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from baton.engine.kv.block_hash import HASH_BYTES, BlockHash, pack_hashes, root_hash
from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.image import Image, hash_marks
from baton.protos import common_pb2
from baton.protos.common_pb2 import PositionLogprobs, ServedBy
from baton.router.adapters.adapter import Adapter
from baton.router.images.source import ImageSource
from baton.router.output.parts import PartsReader, text_of
from baton.router.output.rules import OutputRules
from baton.router.parsing.base import OutputPart
from baton.router.request_context import RequestContext
from baton.router.resumption.resumption import CompletionStart
from baton.router.text.stop_strings import StopString
from baton.rpc.requests import sampling_to_proto

PART_BYTES = 120  # size in memory of a part without its text
LOGPROB_BYTES = 100  # approximate size of one candidate in memory, about that of its JSON


class PromptHashes:
    """Block hashes of one prompt, computed once per block size for all of its completions and attempts."""

    def __init__(
        self, token_ids: Sequence[int], cache_salt: str, images: Sequence[Image] = (), adapter: Adapter | None = None
    ) -> None:
        self._token_ids = token_ids
        self._images = images
        self._root = root_hash(cache_salt, "" if adapter is None else adapter.digest)
        self._hashes: dict[int, bytes] = {}

    def extended(self, token_ids: Sequence[int], block_size: int) -> bytes:
        """Return the concatenated hashes of the full blocks of `token_ids`, the prompt and its output so far."""
        hashes, marks = self._hashes.get(block_size), hash_marks(self._images, block_size)
        if hashes is None:
            hashes = self._hashes[block_size] = pack_hashes(self._root, self._token_ids, block_size, 0, marks)
        num_known = len(hashes) // HASH_BYTES
        if num_known == len(token_ids) // block_size:
            return hashes
        parent = BlockHash(hashes[-HASH_BYTES:]) if hashes else self._root
        return hashes + pack_hashes(parent, token_ids, block_size, num_known * block_size, marks)


class SamplingMessage:
    """Message of a request's sampling options, converted once for all of its prompts, completions and attempts."""

    def __init__(self) -> None:
        self._message: common_pb2.SamplingParams | None = None

    def write(self, sampling: SamplingParams, message: common_pb2.SamplingParams) -> None:
        """Set `message` to the options of one completion, which differ in seed, max_tokens and prompt_logprobs only."""
        if self._message is None:
            self._message = sampling_to_proto(sampling)
        message.CopyFrom(self._message)
        message.seed = sampling.seed
        message.max_tokens = sampling.max_tokens
        if sampling.prompt_logprobs is None:
            message.ClearField("prompt_logprobs")
        else:
            message.prompt_logprobs = sampling.prompt_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Messages for the chat template."""

    messages: Sequence[Mapping[str, object]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_options: Mapping[str, object] = field(default_factory=dict)
    tools: Sequence[Mapping[str, object]] = ()
    images: Sequence[ImageSource] = ()  # in the order in which the messages show them
    marked: Sequence[Mapping[str, object]] = ()  # the beginning that the client expects to send again; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A front end's request for one prompt."""

    request_id: str
    prompt: str | Sequence[int] | ChatPrompt
    sampling: SamplingParams  # its seed and max_tokens are ignored
    seed: int | None = None  # None: random
    max_tokens: int | None = None  # None: the default; 0: return only the prompt and its logprobs
    default_max_tokens: int | None = None  # cut to the rest of the context; None: all of the rest
    add_special_tokens: bool = True
    stop: tuple[str, ...] = ()
    include_stop: bool = False  # the output includes the stop string or token
    skip_special_tokens: bool = True
    n: int = 1
    cache_salt: str = ""
    adapter: Adapter | None = None  # None: the model itself
    resume_key: bytes = b""  # key under which workers remember the output; empty: they do not
    whole: bool = False  # the output is returned at the end, not streamed
    output_rules: OutputRules | None = None  # None: the output is text
    context: RequestContext = field(default_factory=RequestContext)
    sampling_message: SamplingMessage = field(default_factory=SamplingMessage, repr=False, compare=False)

    @property
    def client_id(self) -> str:
        """The client's id of the request, which its timeline has; the id at workers if the request is not recorded."""
        return self.request_id if self.context.trace is None else self.context.trace.request_id

    @property
    def patient(self) -> bool:
        """Whether all tokens after the first may be delivered at once: they are neither streamed nor inspected."""
        return self.whole and self.n == 1 and not self.stop


@dataclass(slots=True)
class TokenCount:
    """Number of tokens that workers have generated for a request, whether or not its client gets them."""

    num_tokens: int = 0

    def add(self, num_tokens: int) -> None:
        """Count further tokens."""
        self.num_tokens += num_tokens


@dataclass(frozen=True, slots=True)
class Generation:
    """A request with a tokenised prompt and known limits."""

    request: GenerationRequest
    token_ids: list[int]  # of the prompt, with the placeholders of its images
    sampling: SamplingParams  # seed and max_tokens are set
    starts: tuple[CompletionStart, ...] = ()  # one per completion of a resumed request; empty: a new request
    images: tuple[Image, ...] = ()  # of the prompt, sent with every command
    num_marked_tokens: int = 0  # leading ones that the client expects to send again, estimated
    is_reasoning_open: bool | None = None  # at the end of the prompt; None: the prompt does not say
    generated: TokenCount = field(default_factory=TokenCount, repr=False, compare=False)  # of all completions
    hashes: PromptHashes = field(init=False)
    stops: tuple[StopString, ...] = field(init=False)  # shared by the completions

    def __post_init__(self) -> None:
        object.__setattr__(self, "stops", tuple(map(StopString, self.request.stop)))
        hashes = PromptHashes(self.token_ids, self.request.cache_salt, self.images, self.request.adapter)
        object.__setattr__(self, "hashes", hashes)

    @property
    def num_pixel_bytes(self) -> int:
        """Bytes of the images' pixels."""
        return sum(len(image.pixels) for image in self.images)

    def parts_reader(self) -> PartsReader | None:
        """Return a reader for the parts of one completion; None if the output is text."""
        rules = self.request.output_rules
        if rules is None:
            return None
        return rules.reader(self.is_reasoning_open, self.sampling.grammar is not None, self.request.request_id)

    def start(self, index: int) -> CompletionStart | None:
        """Return where a completion of a resumed request continues; None if the request is new."""
        return self.starts[index] if self.starts else None

    @property
    def num_recomputed(self) -> int:
        """Number of tokens of a resumed request that are recomputed although its client was charged for them.

        A completion that continues after remembered output does not count the prompt: its KV is probably cached.
        """
        num_lost = self.num_recomputed_output
        is_computed = any(not start.token_ids and not start.finish_reason for start in self.starts)
        return len(self.token_ids) + num_lost if num_lost or is_computed else 0

    @property
    def num_recomputed_output(self) -> int:
        """Number of output tokens among `num_recomputed`."""
        return sum(start.num_seen for start in self.starts if start.num_seen > len(start.token_ids))

    def resume_key(self, index: int) -> bytes:
        """Return the key under which workers remember a completion's output; empty if they do not."""
        return self.request.resume_key + index.to_bytes(4, "little") if self.request.resume_key else b""

    def completion_sampling(self, index: int) -> SamplingParams:
        """Return the options of one completion: the first has the request's seed, the others seeds derived from it."""
        if index == 0:
            return self.sampling
        digest = blake2b(self.sampling.seed.to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8)
        return replace(self.sampling, seed=int.from_bytes(digest.digest(), "little"), prompt_logprobs=None)


@dataclass(slots=True)
class CompletionDelta:
    """New output of one completion."""

    index: int
    text: str = ""  # empty if there are parts
    parts: list[OutputPart] | None = None  # of the output; None: the output is text
    num_reasoning_tokens: int = 0  # among `seen` and the new ones
    token_ids: list[int] = field(default_factory=list)
    text_offsets: list[int] = field(
        default_factory=list
    )  # offset of each new token in the output, in characters; only if logprobs were requested
    logprobs: list[PositionLogprobs] = field(default_factory=list)  # of the new tokens, if requested
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)  # from position 1 on, if requested
    seen: Sequence[int] = ()  # tokens in front of the new ones that the client already has
    finish_reason: str | None = None  # stop, length or tool_calls, in the completion's last delta
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it
    served_by: ServedBy | None = None  # in the deltas of the first token and of the end

    def extend(self, later: "CompletionDelta") -> None:
        """Append a later delta of the same completion."""
        self.text += later.text
        if later.parts is not None:
            if self.parts is None:
                self.parts = []
            self.parts += later.parts
        self.num_reasoning_tokens += later.num_reasoning_tokens
        self.token_ids += later.token_ids
        self.text_offsets += later.text_offsets
        self.logprobs += later.logprobs
        self.prompt_logprobs += later.prompt_logprobs
        self.seen = (*self.seen, *later.seen)
        self.finish_reason = later.finish_reason or self.finish_reason
        self.stop_reason = later.stop_reason if later.stop_reason is not None else self.stop_reason
        self.served_by = later.served_by or self.served_by

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        positions = (*self.logprobs, *self.prompt_logprobs)
        num_logprobs = sum(1 + len(position.top) for position in positions)
        num_bytes = len(self.text) + sum(PART_BYTES + len(text_of(part)) for part in self.parts or ())
        return num_bytes + 8 * (len(self.token_ids) + len(self.text_offsets)) + LOGPROB_BYTES * num_logprobs


def cached_tokens(served_by: ServedBy) -> int:
    """Return the number of prompt tokens that no worker had to compute."""
    if served_by.prefill_worker and served_by.prefill_worker != served_by.decode_worker:
        return served_by.prefill_cached_tokens
    num_stored = sum(served_by.stored_tokens.values()) if served_by.stored_tokens else 0
    return served_by.decode_cached_tokens + served_by.prefix_pulled_tokens + num_stored


DELTA_BYTES = 500  # size in memory of a delta without content


class MergedDeltas:
    """Deltas merged to at most one per completion."""

    def __init__(self) -> None:
        self.num_bytes = 0  # 0: there is no delta
        self._deltas: dict[int, CompletionDelta] = {}

    def add(self, delta: CompletionDelta) -> None:
        """Add a delta, which must not be used afterwards."""
        self.num_bytes += delta.num_bytes
        if (earlier := self._deltas.get(delta.index)) is not None:
            earlier.extend(delta)
        else:
            self.num_bytes += DELTA_BYTES
            self._deltas[delta.index] = delta

    def take(self) -> list[CompletionDelta]:
        """Remove and return the merged deltas."""
        deltas, self._deltas, self.num_bytes = self._deltas, {}, 0
        return list(deltas.values())
