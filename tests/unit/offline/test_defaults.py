"""Sampling parameters of calls that have none."""

import shutil
from pathlib import Path

import pytest

from baton.offline.llm import LLM
from baton.offline.prompts import PromptReader
from baton.router.model_info import read_model_info
from baton.router.text.tokenizer import Tokenizer

MODEL = Path(__file__).parents[3] / "baton" / "bundled_model"


@pytest.mark.parametrize(("given", "max_tokens"), [("{}", 16), ('{"max_new_tokens": 77, "top_k": 5}', 77)])
def test_generation_config_has_the_defaults(tmp_path: Path, given: str, max_tokens: int) -> None:
    shutil.copy(MODEL / "config.json", tmp_path)
    (tmp_path / "generation_config.json").write_text(given)
    llm = LLM.__new__(LLM)  # without processes
    llm._reader = PromptReader(Tokenizer(str(MODEL)), read_model_info(str(tmp_path), "model"), 256)
    params = llm.get_default_sampling_params()
    assert (params.max_tokens, params.top_k) == (max_tokens, 5 if "top_k" in given else 0)
