"""Sampling parameters of a request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.grammar import Grammar

MAX_LOGPROBS = 20
MAX_TEMPERATURE = 2  # as in OpenAI's API
GREEDY_BELOW = 1e-5  # temperature; as in vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling options of one request, under vLLM's names. Stop strings are handled where tokens are detokenised."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None  # the output must match it

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidRequest naming the first option that is out of range.

        The grammar's content is not validated, as that may take milliseconds: see `Grammar.validate`.
        """
        _require(
            0 <= self.temperature <= MAX_TEMPERATURE, "temperature", self.temperature, f"from 0 to {MAX_TEMPERATURE}"
        )
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (all) or more")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        _require(-2 <= self.presence_penalty <= 2, "presence_penalty", self.presence_penalty, "from -2 to 2")
        _require(-2 <= self.frequency_penalty <= 2, "frequency_penalty", self.frequency_penalty, "from -2 to 2")
        _require(
            0 < self.repetition_penalty <= 100, "repetition_penalty", self.repetition_penalty, "above 0 and at most 100"
        )
        _require(0 <= self.seed < 1 << 64, "seed", self.seed, "a 64-bit unsigned number")
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "from 0 to max_tokens")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            _require(count is None or 0 <= count <= MAX_LOGPROBS, name, count, f"from 0 to {MAX_LOGPROBS}")
        in_vocab = f"below {vocab_size}"
        _require_each("logit_bias token id", self.logit_bias, 0, vocab_size - 1, in_vocab)
        _require_each("logit_bias value", self.logit_bias.values(), -100, 100, "from -100 to 100")
        _require_each("stop_token_ids entry", self.stop_token_ids, 0, vocab_size - 1, in_vocab)
        if self.grammar is not None and self.ignore_eos:
            raise self.grammar.invalid("it cannot be combined with ignore_eos, as it ends with an end token")


def _require(ok: bool, name: str, value: object, right: str) -> None:
    if not ok:
        raise InvalidRequest(f"{name} is {value}, but must be {right}")


def _require_each(name: str, values: Iterable[float], least: float, most: float, right: str) -> None:
    for value in values:  # thousands: a call of `_require` for each would take milliseconds
        if not least <= value <= most:
            _require(False, name, value, right)
