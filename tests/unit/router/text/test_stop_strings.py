"""Stop strings in text that is split in any way."""

import random

import pytest

from baton.router.text.stop_strings import Released, StopMatcher, StopString
from tests.unit.router.line_count import count_lines


def matcher_of(stops: list[str], include: bool = False) -> StopMatcher:
    return StopMatcher([StopString(each) for each in stops], include)


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[str, str | None]:
    matcher = matcher_of(stops, include)
    shown = ""
    for piece in pieces:
        released = matcher.push(piece)
        shown += released.text
        if released.stop is not None:
            return shown, released.stop
    return shown + matcher.flush(), None


def expected(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """Return the result by definition: the match that ends first, of those the one that begins first."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@pytest.mark.parametrize("include", [False, True])
def test_splitting_the_text_changes_nothing(include: bool) -> None:
    rng = random.Random(1)
    for _ in range(3000):
        text = "".join(rng.choice("abc") for _ in range(rng.randrange(1, 25)))
        stops = ["".join(rng.choice("abc") for _ in range(rng.randrange(2, 6))) for _ in range(rng.randrange(1, 4))]
        cuts = sorted(rng.sample(range(len(text) + 1), rng.randrange(min(6, len(text)))))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert run(stops, pieces, include) == expected(stops, text, include), (text, stops, pieces)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = matcher_of(["<end>"])
    assert matcher.push("hello <e").text == "hello "
    assert matcher.push("m> ").text == "<em> "
    assert matcher.push("<<").text == "<"
    assert matcher.flush() == "<"


def test_unchecked_text_ends_nothing_but_may_begin_a_stop_string() -> None:
    matcher = matcher_of(["stop"])
    assert matcher.push("a stop st", check=False).text == "a stop "
    released = matcher.push("op b")
    assert (released.text, released.stop) == ("", "stop")


class SlowMatcher:
    """Check the definition: no part of the released text can belong to a stop string that ends later."""

    def __init__(self, stops: list[str], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, text: str, check: bool) -> Released:
        buffer, num_old = self._held + text, len(self._held)
        found = [
            (end, end - len(stop), stop)
            for end in range(num_old + 1, len(buffer) + 1)
            for stop in self._stops
            if check and buffer[:end].endswith(stop)
        ]
        if found:
            end, start, stop = min(found)
            self._held = ""
            return Released(buffer[: end if self._include else start], stop)
        keep = max(
            length
            for stop in self._stops
            for length in range(min(len(stop), len(buffer) + 1))
            if buffer.endswith(stop[:length])
        )
        self._held = buffer[len(buffer) - keep :]
        return Released(buffer[: len(buffer) - keep])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


@pytest.mark.parametrize("alphabet", ["ab", "abc", "a\u00e9\u4f60\U0001f600"])
@pytest.mark.parametrize("include", [False, True])
def test_pieces_are_released_as_by_the_definition(alphabet: str, include: bool) -> None:
    rng = random.Random(2)

    def text(longest: int) -> str:
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(0, longest)))

    for _ in range(1000):
        parts = [text(3) or "a" for _ in range(2)]  # stop strings of the same parts overlap
        stops = ["".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 4))]
        shared = [StopString(each) for each in stops]
        for _ in range(3):  # completions of a request
            matcher, slow = StopMatcher(shared, include), SlowMatcher(stops, include)
            for _ in range(rng.randint(1, 12)):
                piece, check = rng.choice([*parts, text(6)]), rng.random() < 0.8
                released = matcher.push(piece, check)
                assert released == slow.push(piece, check), (stops, piece)
                if rng.random() < 0.05:
                    assert matcher.flush() == slow.flush()
            assert matcher.flush() == slow.flush()


def test_repetitive_stop_strings_take_time_that_is_linear_in_the_text() -> None:
    num_chars = 3000
    stops = ["a" * 1023 + "b", *("a" * (10 + i) + "b" + "a" * (1013 - i) for i in range(15))]
    matcher = matcher_of(stops)

    def push_all() -> None:
        for _ in range(num_chars):
            assert matcher.push("a").stop is None

    assert count_lines(push_all) < 40 * len(stops) * num_chars
