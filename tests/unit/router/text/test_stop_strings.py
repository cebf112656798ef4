"""Stop strings, however the text is cut."""

import random

import pytest

from baton.router.text.detokenizer import StopStrings


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[str, str | None]:
    matcher = StopStrings(stops, include)
    shown = ""
    for piece in pieces:
        released = matcher.push(piece)
        shown += released.text
        if released.stop is not None:
            return shown, released.stop
    return shown + matcher.flush(), None


def expected(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """The definition: the match that ends first, of those the one that begins first."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@pytest.mark.parametrize("include", [False, True])
def test_cutting_the_text_changes_nothing(include: bool) -> None:
    rng = random.Random(1)
    for _ in range(3000):
        text = "".join(rng.choice("abc") for _ in range(rng.randrange(1, 25)))
        stops = ["".join(rng.choice("abc") for _ in range(rng.randrange(2, 6))) for _ in range(rng.randrange(1, 4))]
        cuts = sorted(rng.sample(range(len(text) + 1), rng.randrange(min(6, len(text)))))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert run(stops, pieces, include) == expected(stops, text, include), (text, stops, pieces)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["<end>"], include=False)
    assert matcher.push("hello <e").text == "hello "
    assert matcher.push("m> ").text == "<em> "
    assert matcher.push("<<").text == "<"
    assert matcher.flush() == "<"


def test_unchecked_text_ends_nothing_but_may_begin_a_stop_string() -> None:
    matcher = StopStrings(["stop"], include=False)
    assert matcher.push("a stop st", check=False).text == "a stop "
    released = matcher.push("op b")
    assert (released.text, released.stop) == ("", "stop")
