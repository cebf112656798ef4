"""Server-sent events do not depend on how their bytes are split."""

import random

from baton.loadtool.response import EventSplitter

STREAM = (
    b": a comment\n\ndata: one\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\n"
    b"id: 3\ndata:  spaced\n\n\n\ndata: [DONE]\n\nrest"
)
EVENTS = [b"one", b"two\nlines", b" spaced", b"[DONE]"]


def test_any_split_gives_the_same_events() -> None:
    rng = random.Random(0)
    for num_cuts in (0, 1, 2, 5, 20, len(STREAM)):
        for _ in range(50):
            cuts = sorted(rng.choices(range(len(STREAM) + 1), k=num_cuts))
            splitter, events = EventSplitter(), []
            for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
                events += splitter.feed(STREAM[begin:end])
            assert events == EVENTS
