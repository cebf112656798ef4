"""Prompts of offline inference: texts, tokens and conversations, as the tokens that are sent to the workers."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NotRequired

from pydantic import ValidationError
from typing_extensions import TypedDict

from baton.engine.errors import InvalidRequest
from baton.offline.images import LocalImages
from baton.router.generation import ChatPrompt
from baton.router.model_info import ModelInfo
from baton.router.openai.invalid_body import invalid_body
from baton.router.openai.tokenize import TokenizeRequest
from baton.router.text.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A text."""

    prompt: str


class TokensPrompt(TypedDict):
    """Tokens, and the text that they come from if it is known."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ImageChat:
    """A conversation with images."""

    shown: Mapping[str, object]  # the body of a request, with short URLs in place of the images
    messages: Sequence[Message] = field(repr=False)
    images: LocalImages

    def body(self) -> dict[str, object]:
        """Return the body of a request, with the images. Raises ValueError if one cannot be read."""
        return {**self.shown, "messages": self.images.inlined(self.messages)}


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt that fits the context."""

    text: str | None
    token_ids: list[int]
    chat: ImageChat | None = None  # sent in place of the tokens; None: the prompt has no images


def as_list(prompts: Prompt | Sequence[Prompt], name: str = "prompts") -> list[Prompt]:
    """Return several prompts or a single one as a list. A list of numbers is one prompt. `name`: in errors."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise ValueError(f"{name} must be a prompt or a list of prompts")
    several = list(prompts)
    return [several] if several and isinstance(several[0], int) else several  # type: ignore[list-item, return-value]


@dataclass(frozen=True, slots=True)
class PromptReader:
    """The tokenizer and the bounds of one model."""

    tokenizer: Tokenizer
    model: ModelInfo
    max_model_len: int

    async def read(self, prompts: Sequence[Prompt], room: int, label: str = "prompt") -> list[Tokens]:
        """Return the tokens of all prompts. `room`: tokens that the context must leave for the output.

        Raises ValueError for the first prompt that is invalid or too long, with its index after `label`.
        """
        found: list[Tokens] = []
        for index, prompt in enumerate(prompts):
            await asyncio.sleep(0)  # short texts are encoded without a wait, and Ctrl-C cancels at waits
            try:
                found.append(self.checked(await self._tokens(prompt), room))
            except (InvalidRequest, ValueError) as error:
                raise ValueError(f"{label} {index}: {error}") from None
        return found

    async def read_chats(self, bodies: Sequence[Mapping[str, object]]) -> list[Tokens]:
        """Return the tokens of conversations; a body has the fields of a `/tokenize` request. Raises ValueError."""
        found: list[Tokens] = []
        for index, body in enumerate(bodies):
            await asyncio.sleep(0)
            try:
                found.append(self.checked(await self._rendered(body), room=1))
            except (InvalidRequest, ValueError) as error:
                raise ValueError(f"conversation {index}: {error}") from None
        return found

    def checked(self, prompt: Tokens, room: int) -> Tokens:
        """Return the prompt. Raises ValueError unless it fits the context and the vocabulary."""
        token_ids, limit = prompt.token_ids, self.model.vocab_size
        if not token_ids:
            raise ValueError("it is empty; at least one token is needed")
        if len(token_ids) + room > self.max_model_len:
            left = " and leave no room for output" if len(token_ids) == self.max_model_len else ""
            raise ValueError(
                f"its {len(token_ids)} tokens exceed the context of {self.max_model_len} tokens (max_model_len){left}; "
                "shorten it"
            )
        if min(token_ids) < 0 or max(token_ids) >= limit:
            raise ValueError(f"it has a token id outside 0 to {limit - 1}")
        return prompt

    async def _tokens(self, prompt: Prompt) -> Tokens:
        text: object = None
        token_ids: object = prompt
        if isinstance(prompt, Mapping):
            text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
            if unknown := prompt.keys() - {"prompt", "prompt_token_ids"}:
                raise ValueError(f"{min(unknown)} is not supported; give prompt or prompt_token_ids")
        elif isinstance(prompt, str):
            text, token_ids = prompt, None
        if text is not None and not isinstance(text, str):
            raise ValueError("prompt must be a text")
        if token_ids is not None:
            return Tokens(text, _integers(token_ids))
        if text is None:
            raise ValueError("it must be a text, token ids, or a mapping with prompt or prompt_token_ids")
        max_chars = self.max_model_len * self.tokenizer.max_token_chars
        if len(text) > max_chars:
            raise ValueError(
                f"its {len(text)} characters exceed the context of {self.max_model_len} tokens (max_model_len), at "
                f"most {max_chars} characters"
            )
        return Tokens(text, await self.tokenizer.encode(text, add_special_tokens=True))

    async def _rendered(self, body: Mapping[str, object]) -> Tokens:
        try:
            prompt = TokenizeRequest.model_validate(body).source()
        except ValidationError as error:
            raise invalid_body(TokenizeRequest, error) from None
        assert isinstance(prompt, ChatPrompt)
        text = await self.tokenizer.render(
            prompt.messages,
            prompt.add_generation_prompt,
            prompt.continue_final_message,
            prompt.template_options,
            tools=prompt.tools,
        )
        return Tokens(text, await self.tokenizer.encode(text, add_special_tokens=False))


def _integers(given: object) -> list[int]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not set(map(type, given)) <= {int}:
        raise ValueError("prompt_token_ids must be a list of integers")
    return list(given)
