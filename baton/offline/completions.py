"""Completion requests of prompts, and their outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.offline.adapters import LoRARequest
from baton.offline.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput
from baton.offline.prompts import Tokens
from baton.offline.requests import Answer, Request
from baton.offline.sampling_params import SamplingParams
from baton.router.openai.logprobs import TOKEN_ID_PREFIX
from baton.router.text.tokenizer import Tokenizer

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Completions:
    """Completions of one prompt."""

    request_id: str
    prompt: Tokens
    params: SamplingParams
    seed: int | None  # None: the router draws it
    max_model_len: int
    tokenizer: Tokenizer
    adapter: LoRARequest | None = None
    priority: int = 0

    def request(self) -> Request:
        """Return the request."""
        params = self.params
        left = self.max_model_len - len(self.prompt.token_ids)
        max_tokens = left if params.max_tokens is None else min(params.max_tokens, left)
        body: dict[str, object] = {
            **params.body(),
            "prompt": self.prompt.token_ids,
            "max_tokens": max_tokens,
            "min_tokens": min(params.min_tokens, max_tokens),
            "seed": self.seed,
            "priority": self.priority,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if self.adapter is not None:
            body["model"] = self.adapter.lora_name
        return Request(PATH, body)

    def output(self, answer: Answer) -> RequestOutput:
        """Return the outputs in a response."""
        choices: Sequence[Mapping[str, Any]] = answer["choices"]
        prompt_logprobs = choices[0].get("prompt_logprobs")
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=self.prompt.token_ids,
            prompt_logprobs=None if prompt_logprobs is None else [_ranked(each) for each in prompt_logprobs],
            outputs=[_completion(choice, self.tokenizer, self._num_top) for choice in choices],
            finished=True,
            num_cached_tokens=answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            lora_request=self.adapter,
        )

    @property
    def _num_top(self) -> int:
        return self.params.logprobs or 0


def _completion(choice: Mapping[str, Any], tokenizer: Tokenizer, num_top: int) -> CompletionOutput:
    block: Mapping[str, Any] | None = choice["logprobs"]
    return CompletionOutput(
        index=choice["index"],
        text=choice["text"],
        token_ids=choice["token_ids"],
        cumulative_logprob=None if block is None else sum(block["token_logprobs"]),
        logprobs=None if block is None else [_named(each, tokenizer, num_top) for each in block["top_logprobs"]],
        finish_reason=choice["finish_reason"],
        stop_reason=choice["stop_reason"],
    )


def _named(candidates: Mapping[str, float], tokenizer: Tokenizer, num_top: int) -> PositionLogprobs:
    """Return the candidates of a position: the best ones in order, then the sampled token unless it is one of them."""
    found: PositionLogprobs = {}
    for place, (name, logprob) in enumerate(candidates.items(), 1):
        token_id = int(name.removeprefix(TOKEN_ID_PREFIX))
        found[token_id] = Logprob(logprob, place if place <= num_top else None, tokenizer.token_text(token_id))
    return found


def _ranked(candidates: Mapping[str, Mapping[str, Any]] | None) -> PositionLogprobs | None:
    """Return the candidates of a prompt's position; None for the first one."""
    if candidates is None:
        return None
    return {
        int(token_id): Logprob(each["logprob"], each["rank"], each["decoded_token"])
        for token_id, each in candidates.items()
    }
