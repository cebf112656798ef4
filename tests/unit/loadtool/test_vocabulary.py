"""Vocabularies of prompts."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from baton.loadtool.errors import SettingError
from baton.loadtool.vocabulary import read_vocabulary, token_range

MODEL = Path(__file__).parents[3] / "baton" / "bundled_model"


def test_each_word_is_one_token_in_any_context() -> None:
    vocabulary = read_vocabulary(MODEL)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for seed in range(20):
        tokens = vocabulary.draw(np.random.default_rng(seed), 200)
        text = vocabulary.text(tokens)
        assert tokenizer.encode(text).ids == tokens.tolist()
        assert vocabulary.num_tokens(text) == 200
        both = text + vocabulary.text(tokens[:7])  # runs of words may be adjacent
        assert tokenizer.encode(both).ids == [*tokens.tolist(), *tokens[:7].tolist()]


def test_token_ids_without_a_tokenizer() -> None:
    vocabulary = token_range(5, 8)
    assert set(vocabulary.draw(np.random.default_rng(0), 1000).tolist()) == {5, 6, 7, 8}
    with pytest.raises(SettingError, match="--tokenizer"):
        vocabulary.text(vocabulary.token_ids)
    with pytest.raises(SettingError, match="--tokenizer"):
        vocabulary.num_tokens("text")
    with pytest.raises(SettingError, match="below the last"):
        token_range(8, 8)


def test_an_invalid_tokenizer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no readable tokenizer.json"):
        read_vocabulary(tmp_path)
    poor = tmp_path / "tokenizer.json"
    poor.write_text('{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    with pytest.raises(SettingError, match="0 words"):
        read_vocabulary(poor)
