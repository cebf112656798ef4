"""Detokenization of arbitrary tokens, and stop strings in arbitrary text."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import strategies as st

from baton.router.text.detokenizer import StreamDetokenizer
from baton.router.text.stop_strings import StopMatcher, StopString
from baton.router.text.tokenizer import Tokenizer
from tests.fuzz.fuzzing import Fuzzing
from tests.unit.router.rigs.running_router import MODEL
from tests.unit.router.text.test_tokenizer import byte_fallback_tokenizer

token_ids = st.lists(
    st.one_of(st.integers(0, 300), st.integers(0, 4095), st.integers(0, (1 << 32) - 1), st.just(2)), max_size=100
)


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with closing(Tokenizer(MODEL)) as tokenizer:
        yield tokenizer


def test_any_tokens_are_detokenized(fuzzing: Fuzzing, tokenizer: Tokenizer) -> None:
    byte_fallback = byte_fallback_tokenizer()

    def check(given: tuple[list[int], list[int], bool]) -> None:
        prompt, output, skips = given
        for detokenizer in (
            tokenizer.detokenizer(prompt, skips),
            StreamDetokenizer(tokenizer.backend, prompt, skips),
            StreamDetokenizer(byte_fallback, prompt, skips),
        ):
            text = "".join(map(detokenizer.push, output)) + detokenizer.flush()
            text.encode()
            assert detokenizer.flush() == ""
        for token_id in output:
            tokenizer.token_text(token_id).encode()

    fuzzing.run(st.tuples(token_ids, token_ids, st.booleans()), check, 100)


def test_stop_strings_are_found_in_any_text(fuzzing: Fuzzing) -> None:
    letters = st.text("ab", max_size=4)

    def check(given: tuple[list[str], list[str], bool]) -> None:
        stops, pieces, include = given
        strings = StopMatcher([StopString(each) for each in stops], include)
        text, shown, stop = "", "", None
        for piece in pieces:
            text += piece
            released = strings.push(piece)
            shown, stop = shown + released.text, released.stop
            if stop is not None:
                break
        found = [(start + len(each), start, each) for each in stops if (start := text.find(each)) >= 0]
        if stop is None:
            assert not found
            assert shown + strings.flush() == text
        else:
            end, start, first = min(found)
            assert (shown, stop) == (text[: end if include else start], first)

    stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)
    fuzzing.run(st.tuples(stops, st.lists(letters, max_size=8), st.booleans()), check, 200)
