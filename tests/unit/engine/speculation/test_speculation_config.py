"""The option `speculative_config`."""

import pytest

from baton.engine.config import EngineConfig
from baton.engine.speculation.config import SpeculationConfig
from baton.settings.values import OptionError, parse_json


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"method": "ngram"}', SpeculationConfig("ngram", 5, 2, 5)),
        ('{"method": "ngram", "num_speculative_tokens": 3}', SpeculationConfig("ngram", 3, 2, 5)),
        ('{"method": "suffix"}', SpeculationConfig("suffix", 24)),
        (
            '{"method": "suffix", "num_speculative_tokens": 7, "suffix_decoding_max_tree_depth": 20, '
            '"suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 2, '
            '"suffix_decoding_min_token_prob": 0.5}',
            SpeculationConfig("suffix", 7, 2, 5, None, 20, 0, 2.0, 0.5),
        ),
        ('{"method": "ngram", "prompt_lookup_max": 1}', SpeculationConfig("ngram", 5, 1, 1)),
        ('{"method": "ngram", "prompt_lookup_min": 7}', SpeculationConfig("ngram", 5, 7, 7)),
        ('{"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 4}', SpeculationConfig("ngram", 5, 3, 4)),
        ('{"method": "draft_model", "model": "/x"}', SpeculationConfig("draft_model", model="/x")),
        ('{"model": "/x", "num_speculative_tokens": 3}', SpeculationConfig("draft_model", 3, model="/x")),
        ('{"method": "eagle3", "model": "/x"}', SpeculationConfig("eagle3", model="/x")),
        ('{"method": "eagle", "model": "/x", "num_speculative_tokens": 2}', SpeculationConfig("eagle", 2, model="/x")),
        ('{"method": "mtp", "num_speculative_tokens": 1}', SpeculationConfig("mtp", 1)),
        ('{"method": "medusa", "model": "/x"}', SpeculationConfig("medusa", model="/x")),
    ],
)
def test_options_are_those_of_vllm(text: str, expected: SpeculationConfig) -> None:
    assert SpeculationConfig.parse(parse_json(text)) == expected


def test_there_is_no_speculation_by_default() -> None:
    assert SpeculationConfig.parse(EngineConfig(model="").speculative_config) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "method is missing; the methods are ngram"),
        (
            '{"method": "medusae"}',
            "method 'medusae' is unknown; the methods are ngram, suffix, draft_model, eagle, eagle3, mtp, medusa",
        ),
        ('{"method": "medusa"}', "model is missing: it must be the directory of Medusa heads"),
        ('{"method": "eagle3"}', "model is missing: it must be the directory of an EAGLE-3 head"),
        ('{"method": "eagle", "model": ""}', "model is '', but must be the directory of an EAGLE head"),
        ('{"method": "mtp", "model": "/x"}', "model has no effect on the method mtp; remove it"),
        ('{"method": "mtp", "num_speculative_tokens": 0}', "num_speculative_tokens is 0, but must be a number from 1"),
        ('{"method": ["ngram"]}', "the methods are ngram"),
        (
            '{"method": "ngram", "revision": "x"}',
            "'revision' is unknown; the keys are method, num_speculative_tokens, prompt_",
        ),
        ('{"method": "suffix", "model": "x"}', "model has no effect on the method suffix; remove it"),
        ('{"method": "suffix", "prompt_lookup_max": 3}', "prompt_lookup_max has no effect on the method suffix"),
        (
            '{"method": "ngram", "suffix_decoding_max_tree_depth": 9}',
            "max_tree_depth has no effect on the method ngram",
        ),
        ('{"method": "suffix", "suffix_decoding_max_tree_depth": 0}', "is 0, but must be a number from 1 to 256"),
        ('{"method": "suffix", "suffix_decoding_max_cached_requests": -1}', "is -1, but must be a number from 0"),
        (
            '{"method": "suffix", "suffix_decoding_max_spec_factor": 0}',
            "is 0, but must be a number above 0 and up to 64",
        ),
        (
            '{"method": "suffix", "suffix_decoding_min_token_prob": "x"}',
            "is 'x', but must be a number above 0 and up to 1",
        ),
        ('{"method": "ngram", "model": "x"}', "model has no effect on the method ngram; remove it"),
        ('{"model": "x", "prompt_lookup_max": 3}', "prompt_lookup_max has no effect on the method draft_model"),
        ('{"method": "draft_model"}', "model is missing: it must be the directory of a draft model"),
        ('{"method": "draft_model", "model": 7}', "model is 7, but must be the directory of a draft model"),
        (
            '{"model": "x", "num_speculative_tokens": 65}',
            "num_speculative_tokens is 65, but must be a number from 1 to 64",
        ),
        (
            '{"method": "ngram", "num_speculative_tokens": 0}',
            "num_speculative_tokens is 0, but must be a number from 1",
        ),
        ('{"method": "ngram", "num_speculative_tokens": true}', "num_speculative_tokens is True, but must be"),
        ('{"method": "ngram", "prompt_lookup_max": "5"}', "prompt_lookup_max is '5', but must be a number from 1 to"),
        (
            '{"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}',
            r"prompt_lookup_min is 4, but must be at most prompt_lookup_max \(3\)",
        ),
    ],
)
def test_other_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"speculative_config: .*{message}"):
        EngineConfig(model="", speculative_config=parse_json(text))
