"""Training windows, cut from token streams."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bundled_model.conversations import build_conversations
from bundled_model.docstrings import Documented
from bundled_model.tokenizer import END_OF_TEXT, render, render_with_tools
from bundled_model.tool_conversations import build_json_chats, build_tool_chats

NUM_MADE_UP = 4000  # conversations with tools, and with JSON, in a pass


@dataclass(frozen=True, slots=True)
class Stream:
    """Texts of one kind, generated anew for each pass."""

    draw: Callable[[random.Random], Sequence[str]]
    share: float  # of the windows
    restart: bool  # whether each window starts with a new text, as a prompt does


@dataclass(frozen=True, slots=True)
class Corpus:
    """Training corpus."""

    streams: Sequence[Stream]
    tokenizer: PreTrainedTokenizerFast

    def batches(self, num_windows: int, window: int, rng: random.Random) -> Iterator[Tensor]:
        """Yield endless batches of [num_windows, window] tokens."""
        sources = [self._forever(stream, window, rng) for stream in self.streams]
        shares = [stream.share for stream in self.streams]
        while True:
            rows = [next(source) for source in rng.choices(sources, shares, k=num_windows)]
            yield torch.tensor(rows, dtype=torch.long)

    def _forever(self, stream: Stream, window: int, rng: random.Random) -> Iterator[list[int]]:
        while True:
            windows = list(cut_windows(self.encode(stream.draw(rng)), window, stream.restart))
            rng.shuffle(windows)
            yield from windows

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, with an end-of-text token."""
        end = self.tokenizer.convert_tokens_to_ids(END_OF_TEXT)
        return [[*ids, end] for ids in self.tokenizer(list(texts))["input_ids"]]


def conversation_texts(items: Sequence[Documented], small_talk: float, rng: random.Random) -> list[str]:
    """Return one pass of conversations about public names."""
    return [render(messages) for messages in build_conversations([i for i in items if i.is_public], rng, small_talk)]


def tool_texts(rng: random.Random) -> list[str]:
    """Return conversations with calls of tools."""
    return [render_with_tools(chat.messages, chat.tools) for chat in build_tool_chats(NUM_MADE_UP, rng)]


def json_texts(rng: random.Random) -> list[str]:
    """Return questions whose answers are JSON."""
    return [render(messages) for messages in build_json_chats(NUM_MADE_UP, rng)]


def plain_text(item: Documented) -> str:
    """Return a documented object as a page of text."""
    return f"{item.name}\n\n{item.text}"


def cut_windows(documents: Sequence[Sequence[int]], window: int, restart: bool) -> Iterator[list[int]]:
    """Yield full windows of the concatenated documents.

    A document that crosses the end of a window is cut. Its rest is dropped if `restart`, otherwise it starts the next
    window.
    """
    filled: list[int] = []
    for document in documents:
        filled.extend(document)
        while len(filled) >= window:
            yield filled[:window]
            filled = [] if restart else filled[window:]
