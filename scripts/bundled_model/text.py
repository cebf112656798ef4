"""All text of a run, for training and evaluation."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bundled_model.conversations import WELL_KNOWN_MODULES, Fact, facts_about
from bundled_model.docstrings import Documented, collect_documented
from bundled_model.windows import Stream, conversation_texts, json_texts, plain_text, tool_texts


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Training streams, and pages and facts for evaluation."""

    streams: Sequence[Stream]
    held_out_pages: Sequence[str]
    well_known_facts: Sequence[Fact]
    other_facts: Sequence[Fact]

    def one_pass(self, seed: int) -> list[str]:
        """Return every text once, to train the tokenizer."""
        return [text for stream in self.streams for text in stream.draw(random.Random(seed))]


def collect_text() -> TrainingText:
    """Read the docstrings of the running Python."""
    items = collect_documented()
    trained = [item for item in items if not item.is_held_out]
    well_known = [item for item in trained if item.module in WELL_KNOWN_MODULES]
    others = [item for item in trained if item.module not in WELL_KNOWN_MODULES]
    return TrainingText(
        streams=(
            Stream(partial(conversation_texts, well_known, 0.3), share=0.44, restart=True),
            Stream(partial(conversation_texts, others, 0.0), share=0.11, restart=True),
            Stream(partial(_pages, trained), share=0.13, restart=False),
            Stream(tool_texts, share=0.25, restart=True),
            Stream(json_texts, share=0.07, restart=True),
        ),
        held_out_pages=[plain_text(item) for item in items if item.is_held_out],
        well_known_facts=_facts(well_known),
        other_facts=_facts(others),
    )


def _facts(items: Sequence[Documented]) -> list[Fact]:
    return [fact for item in items if item.is_public for fact in facts_about(item)]


def _pages(items: Sequence[Documented], _: random.Random) -> list[str]:
    return [plain_text(item) for item in items]
