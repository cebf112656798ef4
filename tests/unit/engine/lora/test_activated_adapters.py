"""Activated adapters: the tokens are PEFT's, and the KV in front of the invocation is the model's."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from baton.engine.engine import Engine
from baton.engine.errors import InvalidAdapter
from baton.engine.lora.activation import INACTIVE, activated_digest, first_adapted, invocation_of
from baton.engine.request import Request
from baton.engine.sampling.params import SamplingParams
from baton.router.adapters.adapter import DIGEST, Adapter
from baton.router.generation import PromptHashes
from tests.adapters import ALL_TARGETS, make_adapter
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, random_tokens, request, run, with_adapters
from tests.unit.engine.speculation.draft_rig import draft_freely, option
from tests.unit.engine.tensor_rig import TensorRig

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # PEFT uses it
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]

INVOCATION, OTHER = (7, 9, 7), (5, 5)
TEXT = [token_id for token_id in random_tokens(400, seed=3) if token_id not in {5, 7, 9}]
DOCUMENT = TEXT[:70]
ONCE = [*DOCUMENT, *INVOCATION, *TEXT[100:105]]
TURNS = [*ONCE, *TEXT[200:230], *INVOCATION]  # the first invocation no longer counts
PROMPTS = {"once": ONCE, "turns": TURNS, "never": DOCUMENT, "at the start": [*INVOCATION, *DOCUMENT]}
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'


@pytest.fixture(scope="module")
def activated(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("activated")
    targets = [*ALL_TARGETS, "lm_head"]
    return {
        "first": make_adapter(model, directory / "1", targets, seed=1, alora_invocation_tokens=list(INVOCATION)),
        "second": make_adapter(model, directory / "2", targets, seed=2, alora_invocation_tokens=list(OTHER)),
        "plain": make_adapter(model, directory / "3", targets, seed=1),
    }


@pytest.fixture(scope="module")
def expected(model: Path, activated: dict[str, Path]) -> dict[str, list[int]]:
    """PEFT's greedy continuations of the prompts."""
    from peft import PeftModel  # heavy

    base: Any = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    adapted: Any = PeftModel.from_pretrained(base, str(activated["first"]))
    adapted.generation_config.eos_token_id = None
    return {name: _generated(adapted, prompt) for name, prompt in PROMPTS.items()}


def _generated(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=GREEDY.max_tokens
    )
    return list(output[0, len(prompt) :].tolist())


def of_all(adapter: str | None = "first", sampling: SamplingParams = GREEDY) -> list[Request]:
    return [request(name, prompt, adapter, sampling) for name, prompt in PROMPTS.items()]


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": False},
        {},
        {"async_scheduling": True},
        {"speculative_config": NGRAM},
        {"max_num_batched_tokens": 24, "max_num_seqs": 5},  # chunks cross the invocation
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_tokens_are_those_of_peft(
    model: Path, activated: dict[str, Path], expected: dict[str, list[int]], options: dict[str, object]
) -> None:
    engine = with_adapters(model, activated, **options)
    assert run(engine, *of_all()) == expected
    base = run(engine, *of_all(None))
    assert run(engine, *of_all()) == expected, "with the model's KV in the cache"
    assert [name for name in PROMPTS if base[name] == expected[name]] == ["never"]
    plain = run(engine, *of_all("plain"))
    assert [name for name in PROMPTS if plain[name] == expected[name]] == ["at the start"]


def test_a_mixed_batch_and_preemptions(model: Path, activated: dict[str, Path], expected: dict[str, list[int]]) -> None:
    sampling = replace(GREEDY, max_tokens=40)
    engine = with_adapters(model, activated, kv_cache_memory_bytes=24 * 16 * 3 * 2 * 2 * 16 * 4)
    others = [request(f"other {each}", ONCE, each, sampling) for each in (None, "second", "plain")]
    outputs = run(engine, *of_all(sampling=sampling), *others)
    assert {name: outputs[name][:12] for name in PROMPTS} == expected
    assert outputs["other second"] == outputs["other None"], "the prompt does not invoke it"
    assert engine.stats().num_preemptions > 0
    alone = with_adapters(model, activated, enable_prefix_caching=False)
    for each in of_all(sampling=sampling):
        assert run(alone, each)[each.request_id] == outputs[each.request_id]


def test_a_draft_model(model: Path, activated: dict[str, Path], expected: dict[str, list[int]]) -> None:
    engine = with_adapters(model, activated, speculative_config=option(model))
    draft_freely(engine)
    run(engine, *of_all(None))
    assert run(engine, *of_all()) == expected
    assert engine.stats().speculation.num_accepted_tokens > 0


def cached(engine: Engine, name: str, prompt: list[int], adapter: str | None) -> int:
    each = request(name, prompt, adapter)
    run(engine, each)
    return each.num_cached_tokens


def test_the_prefix_is_shared_with_the_model_and_with_other_activated_adapters(
    model: Path, activated: dict[str, Path]
) -> None:
    engine = with_adapters(model, activated)
    assert cached(engine, "1", ONCE, "first") == 0
    assert cached(engine, "2", ONCE, None) == 64, "blocks in front of the one with the invocation"
    assert cached(engine, "3", [*DOCUMENT, *OTHER, *TEXT[:20]], "second") == 64
    assert cached(engine, "4", ONCE, "plain") == 0
    assert cached(engine, "5", [*TEXT[130:180]], None) == 0
    assert cached(engine, "6", [*TEXT[130:180], *INVOCATION], "first") == 48
    longer = [*ONCE, *TEXT[300:330]]
    assert cached(engine, "7", longer, "first") == 64
    assert cached(engine, "8", longer, "first") == 96, "later blocks are the adapter's"


def test_a_later_turn_invokes_the_adapter_anew(model: Path, activated: dict[str, Path]) -> None:
    engine = with_adapters(model, activated)
    first = request("first", ONCE, "first")
    run(engine, first)
    history = [*first.token_ids, *TEXT[250:285]]
    turn = [*history, *INVOCATION]
    assert cached(engine, "model", history, None) == 64, "the adapter's output is computed again by the model"
    second = request("second", turn, "first")
    tokens = run(engine, second)["second"]
    assert second.num_cached_tokens == len(history) // 16 * 16
    alone = lora_engine(model, enable_prefix_caching=False)
    alone.adapters.load("first", activated["first"])
    assert run(alone, request("alone", turn, "first"))["alone"] == tokens


def test_a_block_depends_on_where_in_it_the_invocation_begins() -> None:
    digest = activated_digest("ab", [1])
    prompt = [3, 1, 3, 1, 3, 3, 3, 3]
    early, late = (
        Request("a", [*prompt], length, GREEDY, adapter="x", adapter_digest=digest)  # type: ignore[arg-type]
        for length in (2, 8)
    )
    assert set(early.hash_blocks(4)).isdisjoint(late.hash_blocks(4))


def test_routers_compute_the_hashes_of_engines(model: Path, activated: dict[str, Path]) -> None:
    engine = with_adapters(model, activated)
    for name in ("first", "second", "plain"):
        info = engine.adapters.get(name)
        assert info is not None
        assert DIGEST.fullmatch(info.digest)
        adapter = Adapter(name, "/somewhere", info.digest)
        for prompt in PROMPTS.values():
            each = request("a", prompt, name, adapter_digest=info.digest, cache_salt="salt")
            hashes = PromptHashes(prompt, "salt", (), adapter)
            assert hashes.extended(prompt, 16) == b"".join(each.hash_blocks(16))
            each.token_ids += INVOCATION * 12  # in the output it invokes nothing
            assert hashes.extended(each.token_ids, 16) == b"".join(each.hash_blocks(16))


def test_two_ranks(model: Path, activated: dict[str, Path], expected: dict[str, list[int]]) -> None:
    rig = TensorRig(model, 2, enable_lora=True, max_num_batched_tokens=24, max_num_seqs=5)
    try:
        registry = rig.engine.adapters
        number = registry.next_number()
        read = registry.read("first", activated["first"], number)
        rig.follower(1).adapters.read("first", activated["first"], number)
        rig.call(lambda engine: engine.adapters.insert(read))
        assert rig.call(lambda engine: run(engine, *of_all())) == expected
    finally:
        rig.close()


def test_the_last_invocation_is_found() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        prompt = [rng.choice((0, 1, 256, 257)) for _ in range(rng.randrange(12))]
        invocation = tuple(rng.choice((0, 1, 256, 257)) for _ in range(rng.randint(1, 3)))
        digest = activated_digest("0123", invocation)
        assert invocation_of(digest) == invocation
        places = [at for at in range(len(prompt)) if tuple(prompt[at : at + len(invocation)]) == invocation]
        assert first_adapted(digest, prompt) == max(places, default=INACTIVE)


@pytest.mark.parametrize(
    ("invocation", "prompt"),
    [([1 << 16, *[0] * 127], [0] * 131_072), ([5] * 128, [5 << 8] * 131_072)],
    ids=["periodic", "equal bytes at other places"],
)
def test_a_search_takes_little_time_in_any_prompt(invocation: list[int], prompt: list[int]) -> None:
    digest = activated_digest("ab", invocation)
    times = []
    for _ in range(3):
        start = time.thread_time()
        assert first_adapted(digest, prompt) == INACTIVE
        times.append(time.thread_time() - start)
    assert min(times) < 0.1  # a search of bytes took 0.15 s and 0.4 s, during which routers do nothing else


@pytest.mark.parametrize("digest", ["", "0123", "0123:", "0123:x", "name:1 of unknown contents", "0123:1,,2"])
def test_other_digests_have_no_invocation(digest: str) -> None:
    assert invocation_of(digest) == ()
    assert first_adapted(digest, [1, 2]) == 0


def test_the_longest_invocation_has_a_digest_that_routers_take() -> None:
    assert DIGEST.fullmatch(activated_digest("f" * 32, [(1 << 24) - 1] * 128))


def test_embeddings_cannot_be_changed(model: Path, tmp_path: Path) -> None:
    adapter = make_adapter(model, tmp_path / "a", ["embed_tokens"], alora_invocation_tokens=[1])
    with pytest.raises(InvalidAdapter, match="embed_tokens cannot be changed by an activated adapter, as in PEFT"):
        lora_engine(model).adapters.load("a", adapter)
