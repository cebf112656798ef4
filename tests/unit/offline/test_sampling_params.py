"""Sampling parameters: vLLM's names and bounds, and what is refused."""

from typing import Any

import pytest

from baton import SamplingParams, StructuredOutputsParams


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 3}, "temperature is 3, but must be from 0 to 2"),
        ({"temperature": "hot"}, "a parameter has the wrong type"),
        ({"top_p": 0}, "top_p is 0, but must be above 0 and at most 1"),
        ({"top_k": -2}, "top_k is -2, but must be 0"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"max_tokens": 0}, "max_tokens is 0, but must be 1 or more"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens is 5, but must be from 0 to max_tokens"),
        ({"n": 0}, "n is 0, but must be from 1 to 128"),
        ({"n": 129}, "n is 129"),
        ({"logprobs": 21}, "logprobs is 21, but must be from 0 to 20"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616"),
        ({"stop": [""]}, "each stop string must have 1 to 1024 characters"),
        ({"logit_bias": {5: 101}}, "logit_bias value is 101"),
        ({"bad_words": ["x"]}, "bad_words is not supported; omit it"),
        ({"detokenize": False}, "detokenize is not supported; omit it"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids is not supported; omit it"),
    ],
)
def test_an_invalid_parameter_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**given)


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]  # what is tested


def test_values_of_vllm_without_effect_are_accepted() -> None:
    assert SamplingParams(detokenize=True, bad_words=[], allowed_token_ids=None, top_k=-1).top_k == -1  # type: ignore[arg-type]


def test_token_ids_are_checked_against_the_vocabulary() -> None:
    params = SamplingParams(stop_token_ids=[7], logit_bias={9: 1.0})
    params.check(10)
    with pytest.raises(ValueError, match="logit_bias token id is 9, but must be below 9"):
        params.check(9)


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "none is given"), ({"regex": "a", "choice": ["b"]}, "regex and choice are given")],
)
def test_structured_outputs_need_exactly_one_constraint(given: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        StructuredOutputsParams(**given)


def test_the_fields_of_a_request_are_those_of_the_api() -> None:
    params = SamplingParams(
        n=2, stop="END", logit_bias={5: -1.5}, structured_outputs=StructuredOutputsParams(choice=["a", "b"])
    )
    body = params.body()
    assert (body["n"], body["stop"], body["logit_bias"]) == (2, ["END"], {"5": -1.5})
    assert body["structured_outputs"] == {"choice": ["a", "b"], "disable_additional_properties": False}
