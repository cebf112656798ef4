"""Structured output of a real engine: outputs match, wherever and however a request continues."""

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import jsonschema
import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError, InvalidRequest
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.loop import EngineLoop
from baton.engine.outputs import StepOutput
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.unit.engine.grammar_rig import EOS, VOCAB_SIZE, byte_tokenizer, schema_grammar, steps

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9999}, "b": {"enum": ["ab", "x"]}, "c": {"type": "boolean"}},
    "required": ["a", "b"],
}
GRAMMARS = (
    schema_grammar(SCHEMA),
    Grammar(GrammarKind.REGEX, "[a-c]?[a-c]?[a-c]-[0-9][0-9]"),
    Grammar(GrammarKind.CHOICE, '["a \\"quoted\\" é", "b\\n", "ab"]'),
    Grammar(GrammarKind.EBNF, 'root ::= "(" root ")" | [0-9] [0-9]'),
)
PROMPT = list(range(5, 25))
TIMEOUT_S = 60
MAX_MOVES = 25


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("model") / "model", tokenizer=byte_tokenizer())


def make_engine(model: Path, **options: int | bool) -> Engine:
    return Engine(
        EngineConfig(model=str(model), dtype="float32", num_threads=1, block_size=4, max_num_seqs=8,
                     max_num_batched_tokens=16, **{"kv_cache_memory_bytes": 1 << 20} | options)  # type: ignore[arg-type]  # options of EngineConfig
    )  # fmt: skip


def make_request(name: str, sampling: SamplingParams, output: Sequence[int] = ()) -> Request:
    return Request(RequestId(name), PROMPT + list(output), len(PROMPT), sampling)


def sampled(grammar: Grammar | None, **options: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 200, "seed": 7, "grammar": grammar, **options})  # type: ignore[arg-type]  # names are the options'


def finish(engine: Engine, *requests: Request) -> list[FinishReason | None]:
    """Runs added requests to their ends; returns how they ended."""
    deadline_s = time.monotonic() + TIMEOUT_S
    for _ in steps(engine):
        assert time.monotonic() < deadline_s
        engine.check_integrity()
    return [request.finish_reason for request in requests]


def generate(engine: Engine, *requests: Request) -> list[list[int]]:
    for request in requests:
        engine.add(request)
    finish(engine, *requests)
    return [request.token_ids[request.num_prompt_tokens :] for request in requests]


def text_of(token_ids: Sequence[int]) -> str:
    assert token_ids[-1] == EOS
    text: str = byte_tokenizer().decode(list(token_ids[:-1]))
    return text


def matches(grammar: Grammar, text: str) -> bool:
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        jsonschema.validate(json.loads(text), json.loads(grammar.source))
        return True
    if grammar.kind is GrammarKind.CHOICE:
        return text in json.loads(grammar.source)
    if grammar.kind is GrammarKind.REGEX:
        letters, digits = text.split("-")
        return 1 <= len(letters) <= 3 and set(letters) <= set("abc") and digits.isdigit() and len(digits) == 2
    depth = text.count("(")
    return text[:depth] == "(" * depth and text[depth + 2 :] == ")" * depth and text[depth : depth + 2].isdigit()


def test_outputs_match_in_one_batch_with_requests_without_a_grammar(model: Path) -> None:
    engine = make_engine(model)
    requests = [make_request(f"{i}", sampled(grammar, seed=i)) for i, grammar in enumerate((*GRAMMARS, None, None))]
    outputs = generate(engine, *requests)
    for grammar, request, output in zip(GRAMMARS, requests, outputs, strict=False):
        assert request.finish_reason is FinishReason.STOP
        assert matches(grammar, text_of(output))
    plain = generate(make_engine(model), *(make_request(f"p{i}", sampled(None, seed=i)) for i in (4, 5)))
    assert outputs[4:] == plain
    counters = engine.stats().grammars
    assert (counters.num_compiles, counters.num_cache_hits) == (4, 0)
    assert counters.num_masks >= sum(map(len, outputs[:4])) > 0
    assert counters.compile_s > 0
    assert counters.mask_s > 0


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind.value)
def test_a_moved_request_has_the_same_tokens(model: Path, grammar: Grammar) -> None:
    first, second = make_engine(model), make_engine(model)
    sampling = sampled(grammar, temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.3, seed=11)
    [whole] = generate(first, make_request("whole", sampling))
    assert matches(grammar, text_of(whole))
    for length in range(1, len(whole), 1 + len(whole) // MAX_MOVES):
        moved = make_request(f"from {length}", sampling, whole[:length])
        [output] = generate(second, moved)
        assert output == whole, f"moved after {length} tokens"


def test_preempted_requests_have_the_same_tokens(model: Path) -> None:
    roomy, tight = make_engine(model), make_engine(model, kv_cache_memory_bytes=200 << 10)
    long = Grammar(GrammarKind.REGEX, "[a-z ]{30,50}")
    samplings = [sampled(long, seed=i, max_tokens=60) for i in range(8)]
    expected = [generate(roomy, make_request(f"{i}", sampling))[0] for i, sampling in enumerate(samplings)]
    requests = [make_request(f"{i}", sampling) for i, sampling in enumerate(samplings)]
    assert generate(tight, *requests) == expected
    assert sum(request.num_preemptions for request in requests) > 0


def test_many_options_together(model: Path) -> None:
    engine, rng = make_engine(model), random.Random(5)
    requests = []
    for place in range(24):
        bias = {rng.randrange(VOCAB_SIZE): rng.choice((-100.0, 100.0)) for _ in range(40)}
        options = {
            "temperature": rng.choice((0.0, 0.7, 1.5)), "top_k": rng.choice((0, 3)), "top_p": rng.choice((0.5, 1.0)),
            "min_p": rng.choice((0.0, 0.2)), "presence_penalty": rng.uniform(-2, 2), "logit_bias": bias,
            "repetition_penalty": rng.uniform(0.5, 2), "logprobs": rng.choice((None, 2)), "seed": place,
        }  # fmt: skip
        requests.append(make_request(f"{place}", sampled(GRAMMARS[place % 4], **options)))
    for request, output in zip(requests, generate(engine, *requests), strict=True):
        assert request.sampling.grammar is not None
        if request.finish_reason is FinishReason.STOP:
            assert matches(request.sampling.grammar, text_of(output))
        else:
            assert len(output) == request.sampling.max_tokens


def test_an_output_that_is_cut_off_ends_by_length(model: Path) -> None:
    request = make_request("a", sampled(schema_grammar(SCHEMA), max_tokens=5))
    [output] = generate(make_engine(model), request)
    assert request.finish_reason is FinishReason.LENGTH
    assert len(output) == 5
    assert EOS not in output


def test_an_end_token_is_only_allowed_where_the_grammar_may_end(model: Path) -> None:
    wants_to_end = {EOS: 100.0}
    short, long = (
        make_request(name, sampled(Grammar(GrammarKind.REGEX, "a{3}[ab]{0,20}"), logit_bias=wants_to_end, min_tokens=n))
        for name, n in (("short", 0), ("long", 10))
    )
    outputs = generate(make_engine(model), short, long)
    assert len(text_of(outputs[0])) == 3
    assert len(outputs[1]) >= 10


def test_a_complete_output_ends_even_below_min_tokens(model: Path) -> None:
    request = make_request("a", sampled(Grammar(GrammarKind.CHOICE, '["ab"]'), min_tokens=50))
    [output] = generate(make_engine(model), request)
    assert text_of(output) == "ab"
    assert request.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (Grammar(GrammarKind.EBNF, "root ::= foo"), 'Rule "foo" is not defined'),
        (Grammar(GrammarKind.EBNF, 'root ::= b\nb ::= b "x"'), "it matches no text"),
        (Grammar(GrammarKind.EBNF, 'root ::= "a" b\nb ::= b "x"'), "no token can follow the first 1 tokens"),
        (Grammar(GrammarKind.REGEX, r"\bfoo"), "the escape \\b at character 1"),
        (Grammar(GrammarKind.REGEX, "a" * (1 << 18)), "it has 262144 bytes, over the limit"),
        (schema_grammar({"not": {}}), "the schema: not is not supported"),
    ],
)
def test_a_grammar_without_an_output_fails_its_request_alone(model: Path, grammar: Grammar, problem: str) -> None:
    engine = make_engine(model)
    bad = make_request("bad", sampled(replace(grammar, field="guided_grammar")))
    good = make_request("good", sampled(GRAMMARS[1]))
    engine.add(bad)
    engine.add(good)
    errors: list[EngineError] = []
    for step in steps(engine):
        errors += [output.error for output in step.outputs if output.error is not None]
        engine.check_integrity()
    assert [type(error) for error in errors] == [InvalidRequest]
    assert str(errors[0]).startswith("guided_grammar: ")
    assert problem in str(errors[0])
    assert bad.finish_reason is FinishReason.ERROR
    assert good.finish_reason is FinishReason.STOP
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_a_grammar_with_ignore_eos_is_refused_at_once(model: Path) -> None:
    engine = make_engine(model)
    sampling = sampled(Grammar(GrammarKind.REGEX, "a"), ignore_eos=True)
    with pytest.raises(InvalidRequest, match="grammar: it cannot be combined with ignore_eos"):
        engine.add(make_request("a", sampling))
    assert not engine.has_work


@pytest.mark.parametrize("async_scheduling", [slow_case(False), True])
def test_the_loop_steps_while_grammars_compile_and_with_steps_launched_ahead(
    model: Path, async_scheduling: bool
) -> None:
    samplings = [sampled(GRAMMARS[i % 5] if i % 5 < 4 else None, seed=i, max_tokens=80) for i in range(20)]
    alone = make_engine(model)
    expected = [generate(alone, make_request(f"{i}", each))[0] for i, each in enumerate(samplings)]
    engine, outputs, ended = make_engine(model, async_scheduling=async_scheduling), {}, threading.Semaphore(0)

    def on_step(step: StepOutput) -> None:
        for output in step.outputs:
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                ended.release()

    loop = EngineLoop(engine, on_step, lambda error: pytest.fail(f"{error}"))
    loop.start()
    requests = [make_request(f"{i}", each) for i, each in enumerate(samplings)]
    for request in requests:
        loop.call(partial(Engine.add, request=request)).result(TIMEOUT_S)
    assert all(ended.acquire(timeout=TIMEOUT_S) for _ in requests)
    loop.stop()
    engine.check_integrity()
    assert [outputs[request.request_id] for request in requests] == expected
