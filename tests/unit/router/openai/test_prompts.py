"""The kinds of prompts in request bodies."""

import math

import pytest

from baton.router.errors import FieldError
from baton.router.openai.prompts import SLICE_IDS, Prompt, read_prompts, read_token_ids


class Unread(list[object]):
    """A list of which only the length and the first element may be read."""

    def __getitem__(self, place: object) -> object:
        assert place == 0
        return super().__getitem__(0)

    def __iter__(self) -> object:  # type: ignore[override]  # it is never iterated
        raise AssertionError("an element was looked at")


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[]], [[]]),
    ],
)
def test_the_four_kinds(given: object, prompts: list[Prompt]) -> None:
    assert list(read_prompts(given, max_prompts=2, context_len=4)) == prompts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "prompt must be a string"),
        ({}, "prompt must be a string"),
        (1, "prompt must be a string"),
        ([1.5], r"prompt\[0\] is 1.5, but must be a token id"),
        ([None], r"prompt\[0\] is None; prompt must be"),
        ([{}], r"prompt\[0\] is something else; prompt must be"),
        ([1, True], r"prompt\[1\] is True, but must be a token id"),
        ([1, "2"], r"prompt\[1\] is '2', but must be a token id"),
        (["1", 2], r"prompt\[1\] is 2; prompt must be"),
        ([[1], "a"], r"prompt\[1\] is not a list of token ids"),
        ([[1], [2, 3.5]], r"prompt\[1\]\[1\] is 3.5, but must be a token id"),
    ],
)
def test_an_unknown_kind_of_prompt_is_named(given: object, message: str) -> None:
    with pytest.raises(FieldError, match=message) as caught:
        list(read_prompts(given, max_prompts=2, context_len=4))
    assert caught.value.field == "prompt"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Unread([[1]] * 3), "3 prompts, over the limit of 2"),
        (Unread(["a"] * 3), "3 prompts, over the limit of 2"),
        (Unread([1] * 4), "4 input tokens"),
        ([Unread([1] * 4)], "4 input tokens"),
    ],
)
def test_overlong_lists_are_rejected_unread(given: object, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        list(read_prompts(given, max_prompts=2, context_len=4))


def test_prompts_are_validated_one_at_a_time() -> None:
    reading = read_prompts([[1.0, 2.0], [3.0, True]], max_prompts=2, context_len=4)
    assert next(reading) == [1, 2]  # the event loop gets a turn here
    with pytest.raises(FieldError, match=r"prompt\[1\]\[1\] is True"):
        next(reading)


@pytest.mark.parametrize("place", [0, SLICE_IDS - 1, SLICE_IDS, 2 * SLICE_IDS])
def test_whole_numbers_in_any_slice_are_ids_and_others_are_named(place: int) -> None:
    given: list[object] = [1.0, 2] * (SLICE_IDS + 5)
    ids = [1, 2] * (SLICE_IDS + 5)
    given[place] = 2.0**53
    ids[place] = 1 << 53
    read = read_token_ids(given, "prompt")
    assert read == ids
    assert set(map(type, read)) == {int}
    for wrong in ("x", True, None, 1.5, math.inf, math.nan, 2.0**53 + 2):
        given[place] = wrong
        with pytest.raises(FieldError, match=rf"prompt\[{place}\] is .*must be a token id"):
            read_token_ids(given, "prompt")
