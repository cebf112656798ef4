"""Forced tokens: appended without a step each, and the same as those that masks alone would give."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.grammar.forced import MAX_CHARS, ForcedToken, ForcedTokens
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.position import MAX_FORCED, GrammarPosition
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import make_checkpoint
from tests.unit.engine.grammar_rig import EOS, VOCAB_SIZE, allowed, backend, byte_tokenizer, schema_grammar, steps

LONG = "a_rather_long_property_name_with_é_and_€"
GRAMMARS = (
    schema_grammar({"type": "object", "properties": {LONG: {"type": "integer"}, "b": {"const": "x" * 150}},
                    "required": [LONG, "b"]}),
    Grammar(GrammarKind.CHOICE, json.dumps(["0123abcdefgh", "0123456789", "nothing of this"])),
    Grammar(GrammarKind.REGEX, "begin-[0-9]{2}-the-end"),
)  # fmt: skip
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    model = make_checkpoint("qwen3", tmp_path_factory.mktemp("model") / "model", tokenizer=byte_tokenizer())
    config = EngineConfig(model=str(model), dtype="float32", num_threads=1, block_size=4, max_num_seqs=4,
                          max_num_batched_tokens=16, kv_cache_memory_bytes=1 << 20)  # fmt: skip
    return Engine(config)


def sampled(grammar: Grammar, **options: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 400, "seed": 3, "grammar": grammar, **options})  # type: ignore[arg-type]  # names are the options'


def generate(engine: Engine, sampling: SamplingParams, output: Sequence[int] = ()) -> tuple[Request, int, list[int]]:
    """Runs a request; returns it, the number of its steps with a token, and the tokens that steps reported."""
    request = Request(RequestId("a"), [*PROMPT, *output], len(PROMPT), sampling)
    engine.add(request)
    num_steps, reported = 0, []
    for step in steps(engine):
        for each in step.outputs:
            num_steps += each.sampled is not None
            reported += each.token_ids
        engine.check_integrity()
    return request, num_steps, reported


def output_of(request: Request) -> list[int]:
    return request.token_ids[len(PROMPT) :]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind.value)
def test_tokens_are_those_of_masks_alone_in_fewer_steps(engine: Engine, grammar: Grammar) -> None:
    num_before = engine.stats().grammars.num_forced
    fast, num_fast_steps, reported = generate(engine, sampled(grammar))
    num_forced = engine.stats().grammars.num_forced - num_before
    slow, num_slow_steps, _ = generate(engine, sampled(grammar, logprobs=0))  # logprobs need a step for each token
    assert output_of(fast) == output_of(slow) == reported
    assert fast.finish_reason is slow.finish_reason is FinishReason.STOP
    assert num_slow_steps == len(reported)
    assert num_fast_steps == len(reported) - num_forced < 0.7 * num_slow_steps


@pytest.mark.slow
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind.value)
def test_a_request_moved_among_forced_tokens_has_the_same_tokens(engine: Engine, grammar: Grammar) -> None:
    options = {"temperature": 0.8, "repetition_penalty": 1.2, "top_p": 0.9}
    whole = output_of(generate(engine, sampled(grammar, **options))[0])
    for length in range(1, len(whole), 1 + len(whole) // 20):
        assert output_of(generate(engine, sampled(grammar, **options), whole[:length])[0]) == whole


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 30])
def test_max_tokens_may_end_an_output_among_forced_tokens(engine: Engine, max_tokens: int) -> None:
    whole = output_of(generate(engine, sampled(GRAMMARS[0]))[0])
    cut, _, reported = generate(engine, sampled(GRAMMARS[0], max_tokens=max_tokens))
    assert output_of(cut) == reported == whole[:max_tokens]
    assert cut.finish_reason is FinishReason.LENGTH


def test_a_stop_token_is_never_forced(engine: Engine) -> None:
    [stop] = byte_tokenizer().encode("-", add_special_tokens=False).ids
    request, _, reported = generate(engine, sampled(GRAMMARS[2], stop_token_ids=frozenset({stop})))
    assert byte_tokenizer().decode(reported) == "begin-"
    assert request.finish_reason is FinishReason.STOP


def test_a_position_matches_a_bounded_number_of_tokens_ahead(tmp_path: Path) -> None:
    xgrammar = backend(tmp_path)
    text = "é" + "ab12" * 40
    tokens = byte_tokenizer().encode(text, add_special_tokens=False).ids
    compiled = xgrammar.compile(Grammar(GrammarKind.CHOICE, json.dumps([text, "x"])))

    def position() -> GrammarPosition:
        matcher = compiled.matcher(frozenset({EOS}))
        return GrammarPosition(matcher, xgrammar.forced_token, -(-VOCAB_SIZE // 32), [EOS], 0)

    ahead, num_matched = position(), 0
    ahead.advance(tokens[:2])  # the bytes of é: the second one is no text, but the only token allowed
    forced = []
    while ahead.forced:
        assert len(ahead.forced) <= MAX_FORCED
        assert allowed(ahead.row) == [ahead.forced[0]]
        forced += list(ahead.forced)
        num_matched += 1
        ahead.advance(list(ahead.forced))
    assert forced == tokens[2:]  # the last one too: no token is longer
    assert num_matched == -(-len(forced) // MAX_FORCED)
    one_by_one = position()
    for place, token_id in enumerate(tokens):
        one_by_one.advance([token_id])
        moved = position()
        moved.advance(tokens[: place + 1])
        assert list(moved.forced)[:1] == list(one_by_one.forced)[:1]
        assert moved.row.equal(one_by_one.row)
    wrong = position()
    wrong.advance(tokens[:2])
    with pytest.raises(ValueError, match="token 3 of the output does not match"):
        wrong.advance([tokens[2] + 1])


def merging_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1, "c": 2, "ab": 3, "Ġa": 4, "Ġ": 5}, [("a", "b"), ("Ġ", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizer


def test_a_text_is_divided_as_by_the_tokenizer_except_for_its_last_token() -> None:
    forced = ForcedTokens(merging_tokenizer(), [b"a", b"b", b"c", b"ab", b" a", b" "])
    assert forced.first("abc") == forced.first("abc") == ForcedToken(3, 2)
    assert forced.first("ab") is None  # "abc" might follow in other vocabularies
    assert forced.first("a") is forced.first("") is None
    assert forced.first("ab" * MAX_CHARS) == ForcedToken(3, 2)


def test_a_token_that_the_text_does_not_begin_with_is_not_forced() -> None:
    tokenizer = merging_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    forced = ForcedTokens(tokenizer, [b"a", b"b", b"c", b"ab", b" a", b" "])
    assert tokenizer.encode("ac").ids == [4, 2]
    assert forced.first("ac") is None


class EvictingCache(OrderedDict[str, ForcedToken | None]):
    """A cache from which another thread evicts each text right after it was looked up."""

    def __contains__(self, text: object) -> bool:
        found = super().__contains__(text)
        self.clear()
        return found


def test_a_text_that_another_thread_evicts_keeps_its_token() -> None:
    forced = ForcedTokens(merging_tokenizer(), [b"a", b"b", b"c", b"ab", b" a", b" "])
    forced._cache = EvictingCache()
    assert [forced.first("abc") for _ in range(4)] == [ForcedToken(3, 2)] * 4
