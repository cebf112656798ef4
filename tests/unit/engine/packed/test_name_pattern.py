"""Patterns for modules' names in quantization configs."""

import re

import pytest

from baton.engine.checkpoint.packed.name_pattern import matcher
from baton.engine.checkpoint.packed.scheme import checked_pattern, containing
from baton.engine.errors import InvalidCheckpoint

NAMES = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.12.mlp.down_proj",
    "model.layers.12.mlp.experts.3.gate_proj",
    "language_model.lm_head",
    "odd {name}-[0] #&~",
)


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.v_proj",
        r".*\.layers\.(?:1[0-9]|\d)\.mlp\..*",
        r"^model\.layers\.\d+\.self_attn\.[qkv]_proj$",
        r"(?!.*mlp).*",
        r".*(?<!down)_proj",
        r"(model).*\1?",
        r".*\.experts\.\d{1,3}\.(gate|up)_proj",
        r"odd {name}.*",
        r"[m[o]odel.*",
        r"(?!x)[\x07-z].*",
        r"(?!x)" + "(m?)" * 8 + "(.*)",
        r"(?!x)(?:m?)(?!.*up)(?!.*gate)(?!.*lm).*",
        r"(?!.*(?:mlp|lm))(?:(?!q_).)*",
        r"(?!x)(m)(o)(d)(e)(l)" + "()" * 60 + ".*",
        r".*m.*p.*(?<!x)",
        r"m[a-z]*+el.*",
        r"model\.layers.*\<.*",
        r"lm_head",
        re.escape("odd {name}-[0] #&~"),
        containing("mlp"),
    ],
)
def test_a_name_matches_as_with_pythons_expressions(pattern: str) -> None:
    whole = checked_pattern(pattern, "config.json")
    assert [bool(matcher(whole)(name)) for name in NAMES] == [bool(re.fullmatch(whole, name)) for name in NAMES]


AT_ONCE = [r"(?!b)" + "a?" * 31 + "a" * 31, r"(?!b)" + "(?:ab?|a)" * 60 + "c"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(?:a|aa)*b", ".*a" * 200 + "b", r"(a?){200}a{200}b"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    assert not matcher(checked_pattern(pattern, "config.json"))("a" * 500)


@pytest.mark.parametrize(
    "pattern",
    [r"(?=a)(a+)+b", r"(?!x)(?:(?:a|aa)*)*b", r"(?!b)" + ".*a" * 9, r"(a*)*\1b", r"(?!b)(?:a?){40}a{40}", *AT_ONCE],
)
def test_a_pattern_that_could_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidCheckpoint, match="could take very long to match"):
        checked_pattern(pattern, "config.json")
