"""Detokenizers in the middle of an output, where a marker ends a character that is incomplete."""

import pytest
from tokenizers import Tokenizer as FastTokenizer

from baton.engine.checkpoint.token_bytes import TokenBytes
from baton.router.text.detokenizer import ByteDetokenizer, Detokenizer, StreamDetokenizer
from tests.unit.router.tokenizer_variants import make_tokenizer


@pytest.fixture(scope="module")
def backend() -> FastTokenizer:
    return make_tokenizer()


@pytest.mark.parametrize("is_stream", [False, True])
def test_text_goes_on_after_an_incomplete_character(backend: FastTokenizer, is_stream: bool) -> None:
    prompt = backend.encode("one two").ids
    detokenizer: Detokenizer = (
        StreamDetokenizer(backend, prompt, True) if is_stream else ByteDetokenizer(TokenBytes(backend), frozenset())
    )
    *begin, last = backend.encode("🎉").ids
    assert begin
    assert detokenizer.push_all(backend.encode(" three").ids) == " three"
    assert detokenizer.push_all(begin) == ""
    assert set(detokenizer.flush()) == {"\ufffd"}
    assert detokenizer.flush() == ""
    assert detokenizer.push_all(backend.encode(" four").ids) == " four"
    assert detokenizer.push_all([*begin, last]) == "🎉"
    assert detokenizer.flush() == ""
