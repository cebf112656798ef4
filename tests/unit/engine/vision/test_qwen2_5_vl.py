"""Qwen2.5-VL with images against transformers, in any chunking, with hits, preemption and async steps."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.errors import InvalidCheckpoint, InvalidRequest
from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.encoder import VisionLayer
from tests.unit.engine.speculation.speculation_rig import NGRAM, draft_always
from tests.unit.engine.vision.image_rig import NUM_TOKENS, PROMPTS, engine_of, request_of, run
from tests.vision_checkpoints import (
    VisionOracle,
    make_vision_checkpoint,
    prompt_of,
    random_image,
    random_text,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_checkpoint(tmp_path_factory.mktemp("qwen2_5_vl") / "model")


@pytest.fixture(scope="module")
def oracle(model: Path) -> VisionOracle:
    return VisionOracle(model)


@pytest.fixture(scope="module")
def expected(oracle: VisionOracle) -> dict[str, list[int]]:
    return {name: oracle.greedy(*prompt, NUM_TOKENS) for name, prompt in PROMPTS.items()}


def test_the_encoder_gives_the_oracles_embeddings(model: Path, oracle: VisionOracle) -> None:
    engine = engine_of(model)
    for rows, columns in ((1, 1), (2, 2), (3, 5), (5, 4), (1, 7)):
        image = random_image(rows, columns, rows)
        given = oracle.inputs([1], [image])
        with torch.inference_mode():
            features = oracle.model.model.visual(given["pixel_values"], grid_thw=given["image_grid_thw"]).pooler_output
        assert engine.runner.images is not None
        ours = engine.runner.images.encoder.encode(image)
        assert features.std() > 0.1
        torch.testing.assert_close(ours, features, atol=1e-4, rtol=0)


def test_each_layer_of_the_encoder_restarts_the_watchdog(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, call, seen = engine_of(model), VisionLayer.__call__, list[float]()

    def watched(self: VisionLayer, *given: Any) -> torch.Tensor:
        seen.append(engine.resumed_s)
        return call(self, *given)

    monkeypatch.setattr(VisionLayer, "__call__", watched)
    begun_s = time.monotonic()
    run(engine, [request_of("smallest", PROMPTS["smallest"])])
    assert len(seen) == 3
    assert begun_s < seen[0] < seen[1] < seen[2]


def test_prompt_logprobs_equal_the_oracles(model: Path, oracle: VisionOracle) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    for name, (tokens, images) in PROMPTS.items():
        engine = engine_of(model, max_num_batched_tokens=11, max_num_seqs=8)
        engine.add(request_of(name, (tokens, images), sampling))
        found = []
        while engine.has_work:
            for output in engine.run(engine.schedule()).outputs:
                found += [each.chosen.logprob for each in output.prompt_logprobs]
        logprobs = oracle.logits(tokens, images).log_softmax(-1)[:-1]
        exact = logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found), exact, atol=1e-3, rtol=0)


@pytest.mark.parametrize("step_tokens", [2, 7, 512])
def test_greedy_tokens_in_any_chunking_equal_the_oracles(
    model: Path, expected: dict[str, list[int]], step_tokens: int
) -> None:
    engine = engine_of(model, max_num_batched_tokens=step_tokens, max_num_seqs=min(step_tokens - 1, 8))
    outputs = run(engine, [request_of(name, prompt) for name, prompt in PROMPTS.items()])
    assert outputs == expected
    assert len(set(map(tuple, expected.values()))) == len(PROMPTS)


def test_steps_launched_ahead_have_the_positions_behind_the_image(model: Path, expected: dict[str, list[int]]) -> None:
    engine = engine_of(model, async_scheduling=True)
    name = "one image"
    engine.add(request_of(name, PROMPTS[name]))
    tokens: list[int] = []
    step = engine.launch(engine.schedule().requests)
    while step is not None:
        ahead = engine.schedule_ahead(step)
        following = engine.launch(ahead, previous=step) if ahead else None
        tokens += [token for output in engine.collect(step).outputs for token in output.token_ids]
        step = following
    assert len(tokens) > 2
    assert tokens == expected[name][: len(tokens)]


def test_drafts_have_the_positions_behind_the_image(model: Path, expected: dict[str, list[int]]) -> None:
    engine = engine_of(model, speculative_config=NGRAM)
    draft_always(engine, expected)
    assert run(engine, [request_of(name, prompt) for name, prompt in PROMPTS.items()]) == expected
    assert engine.stats().speculation.num_accepted_tokens > len(PROMPTS)


def test_a_second_request_uses_the_cached_image_without_encoding_it(
    model: Path, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model)
    name, prompt = "one image", PROMPTS["one image"]
    run(engine, [request_of(name, prompt)])
    assert engine.runner.images is not None
    monkeypatch.setattr(engine.runner.images.encoder, "encode", pytest.fail)
    again = request_of(name, prompt)
    assert run(engine, [again]) == {name: expected[name]}
    assert again.num_cached_tokens > prompt[1][0].end


def test_another_image_in_the_same_text_shares_no_kv(model: Path, oracle: VisionOracle) -> None:
    engine = engine_of(model)
    outputs = []
    for seed in (1, 2):
        tokens, images = prompt_of([random_text(8, 1), random_image(3, 5, seed), random_text(9, 2)])
        request = request_of("same", (tokens, images))
        outputs.append(run(engine, [request])["same"])
        assert outputs[-1] == oracle.greedy(tokens, images, NUM_TOKENS)
        assert request.num_cached_tokens == (8 if seed == 2 else 0)
    assert outputs[0] != outputs[1]


def test_preempted_requests_compute_their_images_again(model: Path, expected: dict[str, list[int]]) -> None:
    block_bytes = engine_of(model).layout.block_bytes
    engine = engine_of(
        model, kv_cache_memory_bytes=22 * block_bytes, enable_prefix_caching=False, max_model_len=80, max_num_seqs=8
    )
    names = ["one image", "image last", "two images"]
    requests = [request_of(name, PROMPTS[name]) for name in names]
    assert run(engine, requests) == {name: expected[name] for name in names}
    assert sum(request.num_preemptions for request in requests) > 0


def test_bfloat16_gives_tokens_of_its_own_in_any_chunking(model: Path) -> None:
    outputs = []
    for step_tokens in (9, 512):
        engine = engine_of(model, dtype="bfloat16", max_num_batched_tokens=step_tokens, max_num_seqs=8)
        outputs.append(run(engine, [request_of("one image", PROMPTS["one image"])]))
    assert outputs[0] == outputs[1]


def test_images_that_do_not_fit_the_prompt_are_refused(model: Path) -> None:
    engine = engine_of(model)
    tokens, images = PROMPTS["one image"]
    with pytest.raises(InvalidRequest, match="not all of them are the placeholder"):
        engine.add(request_of("wrong", (tokens[1:], images)))


def test_sections_that_do_not_divide_the_rotation_are_refused(model: Path) -> None:
    overrides = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 4, 4]}}
    with pytest.raises(InvalidCheckpoint, match="mrope_section must be 3 numbers with the sum 8"):
        read_model_config(model, overrides=overrides)
