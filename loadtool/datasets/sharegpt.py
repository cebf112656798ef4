"""Conversations in ShareGPT's format: the first prompt of each, and the length of its response."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from baton.loadtool.datasets.files import unreadable
from baton.loadtool.errors import DatasetError, SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary

SPEAKERS = (
    frozenset({"human", "user"}),
    frozenset({"gpt", "assistant", "chatgpt"}),
)  # of a question, and of its answer


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation."""

    who: str
    text: str


class ShareGptConversations:
    """First prompts of real conversations. Prompts over the maximum length are skipped, because text is not cut."""

    name = "sharegpt"
    has_times = False

    def __init__(self, path: Path, vocabulary: Vocabulary, lengths: Lengths) -> None:
        """Read the conversations. Raises DatasetError, or SettingError if counting tokens needs a tokenizer."""
        if vocabulary.tokenizer is None and (lengths.output is None or lengths.max_input is not None):
            raise SettingError(
                "conversations have no token counts: give --tokenizer DIRECTORY to count tokens, or --output-len N "
                "without --max-input-len"
            )
        conversations = list(_read(path))
        self._questions = []
        for question, answer in conversations:
            if lengths.max_input is None or vocabulary.num_tokens(question.text) <= lengths.max_input:
                num_output_tokens = lengths.output or lengths.num_output(vocabulary.num_tokens(answer.text))
                self._questions.append(LoadRequest(question.text, num_output_tokens))
        if not self._questions:
            raise DatasetError(
                f"{path}: none of {len(conversations)} conversations has a prompt and a response within the limits"
            )

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """Yield each conversation once, shuffled."""
        for place in np.random.default_rng(seed).permutation(len(self._questions)):
            yield self._questions[place]


def _read(path: Path) -> Iterator[Sequence[Turn]]:
    """Yield the first prompt and response of each conversation that starts with them."""
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"{path}: invalid JSON ({error})") from error
    if not isinstance(content, list):
        raise DatasetError(f"{path}: must be a JSON list of conversations")
    for entry in content:
        turns = _turns(entry)[:2]
        if len(turns) == 2 and all(turn.who in who and turn.text for turn, who in zip(turns, SPEAKERS, strict=True)):
            yield turns


def _turns(entry: object) -> list[Turn]:
    """Return the turns without system messages; empty if the entry is not a conversation."""
    if not isinstance(entry, Mapping):
        return []
    said: list[Turn] = []
    turns = entry.get("conversations") or entry.get("messages")
    for turn in turns if isinstance(turns, list) else []:
        match turn:
            case {"from": str() as who, "value": str() as text} | {"role": str() as who, "content": str() as text}:
                if who != "system":
                    said.append(Turn(who, text))
            case _:
                return []
    return said
