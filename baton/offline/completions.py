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

PATH, CHAT_PATH = "/v1/completions", "/v1/chat/completions"


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
            "max_tokens": max_tokens,
            "min_tokens": min(params.min_tokens, max_tokens),
            "seed": self.seed,
            "priority": self.priority,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if self.adapter is not None:
            body["model"] = self.adapter.lora_name
        if self.prompt.chat is None:
            return Request(PATH, {**body, "prompt": self.prompt.token_ids})
        logprobs = {"logprobs": params.logprobs is not None, "top_logprobs": params.logprobs}
        return Request(CHAT_PATH, {**body, **self.prompt.chat.body(), **logprobs})

    def output(self, answer: Answer) -> RequestOutput:
        """Return the outputs in a response."""
        choices: Sequence[Mapping[str, Any]] = answer["choices"]
        is_chat = self.prompt.chat is not None
        prompt_logprobs = (answer if is_chat else choices[0]).get("prompt_logprobs")
        read = _chat_completion if is_chat else _completion
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=self.prompt.token_ids,
            prompt_logprobs=None if prompt_logprobs is None else [_ranked(each) for each in prompt_logprobs],
            outputs=[read(choice, self.tokenizer, self._num_top) for choice in choices],
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


def _chat_completion(choice: Mapping[str, Any], tokenizer: Tokenizer, num_top: int) -> CompletionOutput:
    """Return the completion in a choice of the chat API, whose text the router does not divide into parts."""
    block: Mapping[str, Any] | None = choice["logprobs"]
    positions: Sequence[Mapping[str, Any]] = [] if block is None else block["content"]
    candidates = [
        {each["token"]: each["logprob"] for each in (*position["top_logprobs"], position)} for position in positions
    ]
    return CompletionOutput(
        index=choice["index"],
        text=choice["message"]["content"] or "",
        token_ids=choice["token_ids"],
        cumulative_logprob=None if block is None else sum(position["logprob"] for position in positions),
        logprobs=None if block is None else [_named(each, tokenizer, num_top) for each in candidates],
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
