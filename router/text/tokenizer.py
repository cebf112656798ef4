"""The model's tokenizer and chat template, without torch and off the event loop."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from tokenizers import Tokenizer as FastTokenizer

from baton.router.admission.turns import Turns
from baton.router.errors import INPUT_PANICS
from baton.router.text.byte_level import TokenBytes
from baton.router.text.chat_template import ChatTemplate, Message, is_plain
from baton.router.text.detokenizer import ByteDetokenizer, Detokenizer, StreamDetokenizer
from baton.router.text.prompt_encoder import PromptEncoder
from baton.router.text.tokenizer_files import find_special_ends, read_tokenizer, usable

P = ParamSpec("P")
T = TypeVar("T")

LONG_SIZE = 1 << 16  # characters or tokens from which on a piece of work waits for its like, and not before others
LONG_S = 0.02  # the same for encoding
INLINE_S = 0.0005  # what takes less is done at once: handing it to a thread and back costs everybody as much
INLINE_MESSAGES = 64  # the same for a template
NUM_THREADS = 2  # for work that is not long
NOTHING: frozenset[int] = frozenset()
CACHE_BYTES = 64 << 20  # for token ids of texts met lately


class Tokenizer:
    """Owns the tokenizer of a model directory and the threads that it works in, which clients use in turn."""

    def __init__(self, directory: str) -> None:
        """Raises FileNotFoundError if the directory has no tokenizer.json, InvalidCheckpoint if a file is damaged."""
        pretrained = read_tokenizer(directory)
        self.backend: FastTokenizer = pretrained.backend_tokenizer
        self._token_bytes = usable(directory, lambda: TokenBytes(self.backend))
        self._encoder = usable(directory, lambda: PromptEncoder(self.backend, CACHE_BYTES))
        added = self.backend.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_ends = usable(directory, lambda: find_special_ends(self.backend))
        self._template = usable(directory, lambda: ChatTemplate(pretrained))
        self.max_token_chars = max(map(len, self.backend.get_vocab()))
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="tokenizer")
        self._turns = Turns(NUM_THREADS)
        self._long_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer-long")
        self._long_turns = Turns()

    def close(self) -> None:
        """Ends the threads once they have done what they are at."""
        self._threads.shutdown()
        self._long_thread.shutdown()

    async def encode(self, text: str, add_special_tokens: bool, cache_salt: str = "", client: str = "") -> list[int]:
        """Token ids of a text. What is remembered of it only texts with the same cache salt find.

        Raises InvalidRequest if the tokenizer breaks off at it.
        """
        if add_special_tokens and self._special_ends is None:
            return await self._run(client, len(text) >= LONG_SIZE, self._encode_alone, text)
        draft = self._encoder.look_up(text, cache_salt)
        if draft.cost_s > INLINE_S:
            await self._run(client, draft.cost_s > LONG_S, self._encoder.encode, draft)
        else:
            with INPUT_PANICS:
                self._encoder.encode(draft)
        token_ids = self._encoder.finish(draft)
        if add_special_tokens and self._special_ends is not None:
            return [*self._special_ends.first, *token_ids, *self._special_ends.last]
        return token_ids

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool, client: str = "") -> str:
        """Text of token ids."""
        return await self._run(client, len(token_ids) >= LONG_SIZE, self._decode, token_ids, skip_special_tokens)

    async def text_offsets(self, token_ids: Sequence[int], skip_special_tokens: bool, client: str = "") -> list[int]:
        """For each token, how many characters of the text come before it."""

        def work() -> list[int]:
            detokenizer = self.detokenizer((), skip_special_tokens)
            offsets, num_chars = [], 0
            for token_id in token_ids:
                offsets.append(num_chars)
                num_chars += len(detokenizer.push(token_id))
            return offsets

        return await self._run(client, len(token_ids) >= LONG_SIZE, work)

    async def token_names(self, token_ids: Sequence[int], client: str = "") -> list[str]:
        """The tokens as they stand in the vocabulary."""

        def work() -> list[str]:
            return [self.backend.id_to_token(token_id) or "" for token_id in token_ids]

        return await self._run(client, len(token_ids) >= LONG_SIZE, work)

    async def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_options: Mapping[str, object],
        client: str = "",
    ) -> str:
        """The prompt that the chat template makes of messages. Raises InvalidRequest with the template's words."""
        self._template.check(template_options)
        work = partial(self._template.render, messages, add_generation_prompt, continue_final_message, template_options)
        if len(messages) <= INLINE_MESSAGES and _num_plain_chars(messages) < LONG_SIZE:
            with INPUT_PANICS:
                return work()
        return await self._run(client, len(messages) >= LONG_SIZE, work)

    def detokenizer(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """Turns the output that follows a prompt into text."""
        if self._token_bytes.concatenate:
            return ByteDetokenizer(self._token_bytes, self._special if skip_special_tokens else NOTHING)
        return StreamDetokenizer(self.backend, prompt_token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; several tokens together may make one character."""
        return self._token_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """A token's bytes as text, with replacement characters for parts of a character."""
        return self._token_bytes[token_id].decode("utf-8", "replace")

    def _encode_alone(self, text: str) -> list[int]:
        # The batch call, unlike the single one, lets go of the interpreter lock.
        [encoding] = self.backend.encode_batch_fast([text], add_special_tokens=True)
        return encoding.ids

    def _decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        [text] = self.backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return text

    async def _run(self, client: str, is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work` in a thread; long work has one of its own, so that the rest need not wait for it.

        Raises InvalidRequest if the tokenizer breaks off.
        """
        threads, turns = (self._long_thread, self._long_turns) if is_long else (self._threads, self._turns)
        with INPUT_PANICS:
            async with turns.turn(client):
                return await asyncio.get_running_loop().run_in_executor(threads, partial(work, *args, **kwargs))


def _num_plain_chars(messages: Sequence[Message]) -> float:
    """Return the characters of messages that are a role and a text alone; infinity for others, which a template may
    take long for.
    """
    return sum(len(message["content"]) if is_plain(message) else math.inf for message in messages)
