"""Prompts with images on the device compared with a CPU in fp32: the encoder, rotary positions, prefill and decode."""

import random
from collections.abc import Iterator
from pathlib import Path

import torch

from baton.engine.vision.image import Image
from benchmarks.gpu.engine_session import Answer, EngineSession, greedy, request, start_engine
from benchmarks.gpu.numerics.answers import compare_answers
from benchmarks.gpu.stage import Record, Setting
from tests.vision_checkpoints import make_vision_checkpoint, prompt_of, random_image, random_text

ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
TEXT = {"hidden_size": 256, "intermediate_size": 384, "initializer_range": 0.06, "rope_parameters": ROTARY}
VISION = {"hidden_size": 128, "intermediate_size": 192, "initializer_range": 0.06, "out_hidden_size": 256}
NUM_REQUESTS = {False: 24, True: 3}
NUM_TOKENS = 12
TOLERANCE = 0.2  # of a logprob: bf16 rounds activations, and the encoder's results


def prompts(count: int) -> Iterator[tuple[list[int], tuple[Image, ...]]]:
    """Yield prompts with one or two images of up to 12 x 12 tokens between texts."""
    rng = random.Random(0)
    for index in range(count):
        parts: list[list[int] | Image] = []
        for image in range(1 + index % 2):
            parts.append(random_text(rng.randint(1, 60), 10 * index + image))
            parts.append(random_image(rng.randint(1, 12), rng.randint(1, 12), 10 * index + image))
        yield prompt_of([*parts, random_text(rng.randint(1, 60), index)])


def answers_on(directory: Path, setting: Setting) -> dict[str, Answer]:
    """Run all prompts on the setting's device; they join one by one."""
    engine = start_engine(directory, setting, max_model_len=1024, kv_cache_memory_bytes=64 << 20)
    sampling = greedy(NUM_TOKENS, logprobs=5)
    session = EngineSession(engine)
    for index, (token_ids, images) in enumerate(prompts(NUM_REQUESTS[setting.is_quick])):
        engine.add(request(str(index), token_ids, sampling, images=images))
        session.run_on(index % 3)
    answered = session.finish()
    engine.close()
    return answered


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    directory = setting.directory / "qwen2.5-vl"
    make_vision_checkpoint(directory, text=TEXT, vision=VISION)
    expected = answers_on(directory, Setting(torch.device("cpu"), setting.is_quick, setting.directory))
    compare_answers(record, "qwen2.5-vl", answers_on(directory, setting), expected, TOLERANCE)
