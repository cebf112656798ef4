"""A prompt with its options on its way through the router, and the news of its choices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from baton.engine.kv.block_hash import HASH_BYTES, BlockHash, pack_hashes, root_hash
from baton.engine.sampling.params import SamplingParams
from baton.protos.common_pb2 import PositionLogprobs, ServedBy
from baton.router.request_context import RequestContext
from baton.router.resumption.resumption import ChoiceStart
from baton.router.text.stop_strings import StopString


class PromptHashes:
    """Owns the block hashes of one prompt, so that its choices and their attempts hash it once for each block size."""

    def __init__(self, token_ids: Sequence[int], cache_salt: str) -> None:
        self._token_ids = token_ids
        self._root = root_hash(cache_salt)
        self._hashes: dict[int, bytes] = {}

    def extended(self, token_ids: Sequence[int], block_size: int) -> bytes:
        """Hashes of the full blocks of `token_ids`, one after the other; these are the prompt and what followed it."""
        hashes = self._hashes.get(block_size)
        if hashes is None:
            hashes = self._hashes[block_size] = pack_hashes(self._root, self._token_ids, block_size)
        num_known = len(hashes) // HASH_BYTES
        if num_known == len(token_ids) // block_size:
            return hashes
        parent = BlockHash(hashes[-HASH_BYTES:]) if hashes else self._root
        return hashes + pack_hashes(parent, token_ids, block_size, num_known * block_size)


LOGPROB_BYTES = 100  # of one candidate in memory, about as many as its JSON has


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Messages for the chat template."""

    messages: Sequence[Mapping[str, object]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What a front end asks for one prompt."""

    request_id: str
    prompt: str | Sequence[int] | ChatPrompt
    sampling: SamplingParams  # its seed and max_tokens do not count
    seed: int | None = None  # None: drawn
    max_tokens: int | None = None  # None: the default; 0: only the prompt and its logprobs are wanted
    default_max_tokens: int | None = None  # cut to what the context leaves; None: all of that
    add_special_tokens: bool = True
    stop: tuple[str, ...] = ()
    include_stop: bool = False  # the stop string or token is shown too
    skip_special_tokens: bool = True
    n: int = 1
    cache_salt: str = ""
    resume_key: bytes = b""  # by which workers remember the output; empty: they do not
    whole: bool = False  # nobody looks at the output before its end
    context: RequestContext = field(default_factory=RequestContext)

    @property
    def patient(self) -> bool:
        """Whether the output may come all at once after its first token: nobody sees it, and nothing in it matters."""
        return self.whole and self.n == 1 and not self.stop


@dataclass(frozen=True, slots=True)
class Generation:
    """A request whose prompt is tokens and whose limits are known."""

    request: GenerationRequest
    token_ids: list[int]  # of the prompt
    sampling: SamplingParams  # seed and max_tokens are set
    starts: tuple[ChoiceStart, ...] = ()  # of a resumed request, one a choice
    hashes: PromptHashes = field(init=False)
    stops: tuple[StopString, ...] = field(init=False)  # shared by the choices

    def __post_init__(self) -> None:
        object.__setattr__(self, "stops", tuple(map(StopString, self.request.stop)))
        object.__setattr__(self, "hashes", PromptHashes(self.token_ids, self.request.cache_salt))

    def start(self, index: int) -> ChoiceStart | None:
        """Return where a choice of a resumed request goes on; None if the request is new."""
        return self.starts[index] if self.starts else None

    @property
    def num_recomputed(self) -> int:
        """Tokens of a resumed request that are computed again although its client was charged for them."""
        lost = [start.num_seen for start in self.starts if start.num_seen > len(start.token_ids)]
        most = self.sampling.max_tokens
        return len(self.token_ids) + sum(min(num_seen, most) for num_seen in lost) if lost else 0

    def resume_key(self, index: int) -> bytes:
        """Return what workers remember a choice's output by; empty if they do not."""
        return self.request.resume_key + index.to_bytes(4, "little") if self.request.resume_key else b""

    def choice_sampling(self, index: int) -> SamplingParams:
        """Options of one choice: each has a seed of its own, the first the request's."""
        if index == 0:
            return self.sampling
        digest = blake2b(self.sampling.seed.to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8)
        return replace(self.sampling, seed=int.from_bytes(digest.digest(), "little"), prompt_logprobs=None)


@dataclass(slots=True)
class ChoiceDelta:
    """News of one choice."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    text_offsets: list[int] = field(
        default_factory=list
    )  # of each new token, from the output's start, in characters; if logprobs were asked for
    logprobs: list[PositionLogprobs] = field(default_factory=list)  # of the new tokens, if asked for
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)  # from position 1 on, if asked for
    seen: Sequence[int] = ()  # tokens ahead of the new ones that the client has already
    finish_reason: str | None = None  # stop, length: with the choice's last news
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it
    served_by: ServedBy | None = None  # with the first token and the last news

    def extend(self, later: "ChoiceDelta") -> None:
        """Append a later delta of the same choice."""
        self.text += later.text
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
        return len(self.text) + 8 * (len(self.token_ids) + len(self.text_offsets)) + LOGPROB_BYTES * num_logprobs


def cached_tokens(served_by: ServedBy) -> int:
    """Prompt tokens that no worker had to compute."""
    if served_by.prefill_worker and served_by.prefill_worker != served_by.decode_worker:
        return served_by.prefill_cached_tokens
    return served_by.decode_cached_tokens + served_by.prefix_pulled_tokens


DELTA_BYTES = 500  # of a delta without content, in memory


class MergedDeltas:
    """Owns at most one delta a choice, however many were added."""

    def __init__(self) -> None:
        self.num_bytes = 0  # 0: there is none
        self._deltas: dict[int, ChoiceDelta] = {}

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta, which must not be used afterwards."""
        self.num_bytes += delta.num_bytes
        if (earlier := self._deltas.get(delta.index)) is not None:
            earlier.extend(delta)
        else:
            self.num_bytes += DELTA_BYTES
            self._deltas[delta.index] = delta

    def take(self) -> list[ChoiceDelta]:
        """Return the merged deltas; none is left."""
        deltas, self._deltas, self.num_bytes = self._deltas, {}, 0
        return list(deltas.values())
