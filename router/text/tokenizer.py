"""The model's tokenizer and chat template, without torch and off the event loop."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from tokenizers import Tokenizer as FastTokenizer

from baton.engine.checkpoint.token_bytes import TokenBytes
from baton.engine.errors import InvalidRequest
from baton.router.admission.turns import Turns
from baton.router.errors import INPUT_PANICS
from baton.router.text.chat_template import ChatTemplate, Message, is_plain
from baton.router.text.detokenizer import ByteDetokenizer, Detokenizer, StreamDetokenizer
from baton.router.text.prompt_encoder import PromptEncoder
from baton.router.text.tokenizer_files import SpecialTokenAffixes, find_special_token_affixes, read_tokenizer, usable

P = ParamSpec("P")
T = TypeVar("T")

LONG_SIZE = 1 << 16  # characters or tokens from which a job is long and runs in the thread for long jobs
LONG_S = 0.02  # the same for encoding, in estimated seconds
INLINE_S = 0.0005  # shorter encodings run on the event loop: a hand-over to a thread costs as much
MANY_TOOLS = 128  # from which rendering them is long
INLINE_MESSAGES = 64  # the same for a template, in messages
NUM_THREADS = 2  # for jobs that are not long
NOTHING: frozenset[int] = frozenset()
CACHE_BYTES = 64 << 20  # for the token ids of recent texts


class Tokenizer:
    """The tokenizer of a model directory, and its threads, at which clients take turns."""

    def __init__(self, directory: str) -> None:
        """Raise FileNotFoundError if the directory has no tokenizer.json, InvalidCheckpoint if a file is damaged."""
        pretrained = read_tokenizer(directory)
        self.backend: FastTokenizer = pretrained.backend_tokenizer
        self._token_bytes = usable(directory, lambda: TokenBytes(self.backend))
        self._encoder = usable(directory, lambda: PromptEncoder(self.backend, CACHE_BYTES))
        added = self.backend.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_token_affixes = usable(directory, lambda: find_special_token_affixes(self.backend))
        self.chat_template = usable(directory, lambda: ChatTemplate(pretrained))
        self.max_token_chars = max(map(len, self.backend.get_vocab()))
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="tokenizer")
        self._turns = Turns(NUM_THREADS)
        self._long_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer-long")
        self._long_turns = Turns()

    def close(self) -> None:
        """End the threads after their current jobs."""
        self._threads.shutdown()
        self._long_thread.shutdown()

    async def encode(self, text: str, add_special_tokens: bool, cache_salt: str = "", client: str = "") -> list[int]:
        """Return the token ids of a text. Only texts with the same cache salt share cached pieces.

        Raises InvalidRequest if the tokenizer panics on the text.
        """
        if add_special_tokens and self._special_token_affixes is None:
            return await self._run(client, len(text) >= LONG_SIZE, self._encode_alone, text)
        draft = self._encoder.look_up(text, cache_salt)
        if draft.cost_s > INLINE_S:
            await self._run(client, draft.cost_s > LONG_S, self._encoder.encode, draft)
        else:
            with INPUT_PANICS:
                self._encoder.encode(draft)
        token_ids = self._encoder.finish(draft)
        if add_special_tokens and self._special_token_affixes is not None:
            return [*self._special_token_affixes.first, *token_ids, *self._special_token_affixes.last]
        return token_ids

    async def encode_truncated(
        self,
        text: str,
        max_tokens: int,
        keeps_end: bool,
        add_special_tokens: bool,
        cache_salt: str = "",
        client: str = "",
    ) -> list[int]:
        """Return at most `max_tokens` token ids of a text, its last ones if `keeps_end`, otherwise its first.

        Special tokens around a text are kept. Raises InvalidRequest if they alone exceed the maximum.
        """
        affixes = self._special_token_affixes if add_special_tokens else NO_AFFIXES
        if affixes is None:  # the post-processor may do anything
            return truncated(await self.encode(text, True, cache_salt, client), max_tokens, keeps_end)
        num_special = len(affixes.first) + len(affixes.last)
        if num_special > max_tokens:
            raise InvalidRequest(f"{max_tokens} tokens leave no room for the {num_special} special tokens of an input")
        token_ids = await self.encode(text, False, cache_salt, client)
        return [*affixes.first, *truncated(token_ids, max_tokens - num_special, keeps_end), *affixes.last]

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool, client: str = "") -> str:
        """Return the text of token ids. Raises InvalidRequest if the tokenizer panics on them."""
        return await self._run(client, len(token_ids) >= LONG_SIZE, self._decode, token_ids, skip_special_tokens)

    async def text_offsets(self, token_ids: Sequence[int], skip_special_tokens: bool, client: str = "") -> list[int]:
        """Return the offset of each token in the text, in characters."""

        def work() -> list[int]:
            detokenizer = self.detokenizer((), skip_special_tokens)
            offsets, num_chars = [], 0
            for token_id in token_ids:
                offsets.append(num_chars)
                num_chars += len(detokenizer.push(token_id))
            return offsets

        return await self._run(client, len(token_ids) >= LONG_SIZE, work)

    async def token_names(self, token_ids: Sequence[int], client: str = "") -> list[str]:
        """Return the tokens' strings in the vocabulary; "" for unknown ids."""

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
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Render messages with the chat template. Raises InvalidRequest with the template's message."""
        self.chat_template.check(template_options)
        work = partial(
            self.chat_template.render,
            messages,
            add_generation_prompt,
            continue_final_message,
            template_options,
            tools,
        )
        if not tools and len(messages) <= INLINE_MESSAGES and _num_plain_chars(messages) < LONG_SIZE:
            with INPUT_PANICS:
                return work()
        return await self._run(client, len(messages) >= LONG_SIZE or len(tools) > MANY_TOOLS, work)

    def detokenizer(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """Return a detokenizer for the output after a prompt."""
        if self._token_bytes.concatenate:
            return ByteDetokenizer(self._token_bytes, self._special if skip_special_tokens else NOTHING)
        return StreamDetokenizer(self.backend, prompt_token_ids, skip_special_tokens)

    def single_tokens(self, texts: Iterable[str]) -> dict[int, str]:
        """Return those of the texts that are an added token, by its id: text is never tokenised to another one."""
        wanted = frozenset(texts)
        added = self.backend.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items() if token.content in wanted}

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is special, and so never part of a text."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; a character may span several tokens."""
        return self._token_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """Return a token's bytes as text, with replacement characters for incomplete characters."""
        return self._token_bytes[token_id].decode("utf-8", "replace")

    def _encode_alone(self, text: str) -> list[int]:
        # Unlike the single call, the batch call releases the GIL.
        [encoding] = self.backend.encode_batch_fast([text], add_special_tokens=True)
        return encoding.ids

    def _decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        [text] = self.backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return text

    async def _run(self, client: str, is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread and return its result. Long work has a separate thread, so it does not delay the rest.

        Raises InvalidRequest if the tokenizer panics.
        """
        threads, turns = (self._long_thread, self._long_turns) if is_long else (self._threads, self._turns)
        with INPUT_PANICS:
            async with turns.turn(client):
                return await asyncio.get_running_loop().run_in_executor(threads, partial(work, *args, **kwargs))


NO_AFFIXES = SpecialTokenAffixes((), ())


def truncated(token_ids: list[int], max_tokens: int, keeps_end: bool) -> list[int]:
    """Return the first token ids, or the last ones if `keeps_end`, at most `max_tokens`."""
    return token_ids[max(0, len(token_ids) - max_tokens) :] if keeps_end else token_ids[:max_tokens]


def _num_plain_chars(messages: Sequence[Message]) -> float:
    """Return the total characters of the messages; infinity if one is not plain, as its rendering may take long."""
    return sum(len(message["content"]) if is_plain(message) else math.inf for message in messages)
