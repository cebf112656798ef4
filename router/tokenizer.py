"""The model's tokenizer and chat template, without torch and off the event loop."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer as FastTokenizer

# The class that every tokenizer.json loads into; AutoTokenizer would import torch for its model registry.
from transformers import PreTrainedTokenizerFast

from engine.errors import InvalidRequest
from router.detokenizer import Detokenizer
from router.token_bytes import TokenBytes

Message = Mapping[str, Any]  # as the chat template sees it: role, content and whatever else the client gave


class Tokenizer:
    """Owns the tokenizer of a model directory and the threads that it works in."""

    def __init__(self, directory: str) -> None:
        """Raises FileNotFoundError if the directory has no tokenizer.json."""
        if not (Path(directory) / "tokenizer.json").is_file():
            raise FileNotFoundError(f"{directory} has no tokenizer.json; save the model's fast tokenizer there")
        self._pretrained = PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
        self.backend: FastTokenizer = self._pretrained.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self._token_bytes = TokenBytes(self.backend)
        self._reserved = frozenset(inspect.signature(self._pretrained.apply_chat_template).parameters) | {"messages"}
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")

    def close(self) -> None:
        """Ends the threads once they have done what they are at."""
        self._threads.shutdown()

    @property
    def vocab_size(self) -> int:
        """Tokens that the tokenizer knows, added ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._encode, text, add_special_tokens)

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of token ids."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._decode, token_ids, skip_special_tokens)

    async def text_offsets(self, token_ids: Sequence[int], skip_special_tokens: bool) -> list[int]:
        """For each token, how many characters of the text come before it."""

        def work() -> list[int]:
            detokenizer = Detokenizer(self.backend, (), skip_special_tokens)
            offsets, num_chars = [], 0
            for token_id in token_ids:
                offsets.append(num_chars)
                num_chars += len(detokenizer.push(token_id))
            return offsets

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_options: Mapping[str, object],
    ) -> str:
        """The prompt that the chat template makes of messages. Raises InvalidRequest with the template's words."""
        taken = self._reserved.intersection(template_options)
        if taken:
            raise InvalidRequest(f"chat_template_kwargs must not set {', '.join(sorted(taken))}")
        if self._pretrained.chat_template is None:
            raise InvalidRequest("the model has no chat template; use /v1/completions")

        def work() -> str:
            try:
                text = self._pretrained.apply_chat_template(
                    messages,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    **template_options,
                )
            except (TemplateError, ValueError, TypeError, KeyError) as error:
                raise InvalidRequest(f"the chat template refuses the messages: {error}") from error
            assert isinstance(text, str)
            return text

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def detokenizer(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """Turns the output that follows a prompt into text."""
        return Detokenizer(self.backend, prompt_token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; several tokens together may make one character."""
        return self._token_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """A token's bytes as text, with replacement characters for parts of a character."""
        return self._token_bytes[token_id].decode("utf-8", "replace")

    def token_name(self, token_id: int) -> str:
        """The token as it stands in the vocabulary."""
        return self.backend.id_to_token(token_id) or ""

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def _decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
