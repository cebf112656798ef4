"""The model's tokenizer and chat template, without torch and off the event loop."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tokenizers import Tokenizer as FastTokenizer

# The class that every tokenizer.json loads into; AutoTokenizer would import torch for its model registry.
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import InvalidRequest
from router.detokenizer import Detokenizer
from router.token_bytes import TokenBytes

Message = Mapping[str, Any]  # as the chat template sees it: role, content and whatever else the client gave

P = ParamSpec("P")
T = TypeVar("T")

LONG_SIZE = 1 << 16  # characters or tokens from which on a piece of work waits for its like, and not before others


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
        self._reserved = frozenset({"self", "messages"}).union(
            inspect.signature(self._pretrained.apply_chat_template).parameters,
            inspect.signature(render_jinja_template).parameters,
        )
        self.max_token_chars = max(map(len, self.backend.get_vocab()))
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")
        self._long_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer-long")

    def close(self) -> None:
        """Ends the threads once they have done what they are at."""
        self._threads.shutdown()
        self._long_thread.shutdown()

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        return await self._run(len(text), self._encode, text, add_special_tokens)

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of token ids."""
        return await self._run(len(token_ids), self._decode, token_ids, skip_special_tokens)

    async def text_offsets(self, token_ids: Sequence[int], skip_special_tokens: bool) -> list[int]:
        """For each token, how many characters of the text come before it."""

        def work() -> list[int]:
            detokenizer = Detokenizer(self.backend, (), skip_special_tokens)
            offsets, num_chars = [], 0
            for token_id in token_ids:
                offsets.append(num_chars)
                num_chars += len(detokenizer.push(token_id))
            return offsets

        return await self._run(len(token_ids), work)

    async def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """The tokens as they stand in the vocabulary."""

        def work() -> list[str]:
            return [self.backend.id_to_token(token_id) or "" for token_id in token_ids]

        return await self._run(len(token_ids), work)

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
            except Exception as error:  # a template is a program: it may fail at the client's messages in any way
                reason = str(error) or type(error).__name__
                raise InvalidRequest(f"the chat template refuses the messages: {reason}") from error
            assert isinstance(text, str)
            return text

        return await self._run(len(messages), work)

    def detokenizer(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """Turns the output that follows a prompt into text."""
        return Detokenizer(self.backend, prompt_token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; several tokens together may make one character."""
        return self._token_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """A token's bytes as text, with replacement characters for parts of a character."""
        return self._token_bytes[token_id].decode("utf-8", "replace")

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # The batch call, unlike the single one, lets go of the interpreter lock.
        [encoding] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def _decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        [text] = self.backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return text

    async def _run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work` in a thread: in that for long work if `size` says so, so that the rest need not wait."""
        threads = self._long_thread if size >= LONG_SIZE else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, partial(work, *args, **kwargs))
