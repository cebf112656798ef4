"""Sampling options and logprobs as messages."""

import random
from dataclasses import fields

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.outputs import PositionLogprobs, TokenLogprob
from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2
from baton.rpc.requests import logprobs_from_proto, logprobs_to_proto, sampling_from_proto, sampling_to_proto

GRAMMARS = (
    Grammar(GrammarKind.JSON_OBJECT, field="response_format"),
    Grammar(GrammarKind.JSON_SCHEMA, '{"type": "string"}', is_open=True),
    Grammar(GrammarKind.REGEX, "é+"),
    Grammar(GrammarKind.CHOICE, '["a", "b\\n"]'),
    Grammar(GrammarKind.EBNF, 'root ::= "a"', field="guided_grammar"),
    Grammar(GrammarKind.STRUCTURAL_TAG, "{}"),
)


def random_sampling(rng: random.Random) -> SamplingParams:
    def share() -> float:
        return rng.randrange(1, 64) / 64  # exact in the message's 32-bit floats

    return SamplingParams(
        temperature=share(), top_p=share(), top_k=rng.randrange(100), min_p=share(), presence_penalty=-share(),
        frequency_penalty=share(), repetition_penalty=share(), logit_bias={rng.randrange(500): -share()},
        seed=rng.getrandbits(64), stop_token_ids=frozenset(rng.sample(range(500), 3)), ignore_eos=rng.random() < 0.5,
        min_tokens=rng.randrange(9), max_tokens=rng.randrange(1, 99), logprobs=rng.choice([None, 0, 5]),
        prompt_logprobs=rng.choice([None, 0, 5]), grammar=rng.choice([None, *GRAMMARS]),
    )  # fmt: skip


def test_options_round_trip_through_the_message() -> None:
    rng = random.Random(0)
    for _ in range(100):
        sampling = random_sampling(rng)
        message = common_pb2.SamplingParams.FromString(sampling_to_proto(sampling).SerializeToString())
        received = sampling_from_proto(message)
        assert received == sampling
        assert (received.grammar and received.grammar.field) == (sampling.grammar and sampling.grammar.field)


def test_a_grammar_without_a_source_is_invalid() -> None:
    for message in (common_pb2.Grammar(), common_pb2.Grammar(json_object=False)):
        grammar = sampling_from_proto(common_pb2.SamplingParams(grammar=message)).grammar
        assert grammar is not None
        with pytest.raises(InvalidRequest, match="grammar: the grammar is empty"):
            grammar.validate()


def test_every_option_has_its_field() -> None:
    names = {field.name for field in fields(SamplingParams)}
    assert names == set(common_pb2.SamplingParams.DESCRIPTOR.fields_by_name)


def test_unset_options_are_the_defaults() -> None:
    assert sampling_from_proto(common_pb2.SamplingParams()) == SamplingParams()
    defaults = random_sampling(random.Random(1))
    assert sampling_from_proto(common_pb2.SamplingParams(), defaults) == defaults
    given = sampling_from_proto(common_pb2.SamplingParams(temperature=0, ignore_eos=False, top_k=0), defaults)
    assert (given.temperature, given.ignore_eos, given.top_k, given.top_p) == (0, False, 0, defaults.top_p)


def test_logprobs_round_trip_through_the_message() -> None:
    position = PositionLogprobs(TokenLogprob(5, -0.5, 2), (TokenLogprob(7, -0.25, 1), TokenLogprob(5, -0.5, 2)))
    message = common_pb2.PositionLogprobs.FromString(logprobs_to_proto(position).SerializeToString())
    assert logprobs_from_proto(message) == position
