"""`LLM.chat` with images of files, data URLs and Pillow: transformers' tokens, after a handover."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from baton import LLM, SamplingParams
from baton.engine.vision.image import Image
from baton.router.images.decoding import resized_image
from baton.router.images.limits import ImageLimits
from baton.router.images.processor import ProcessorConfig
from baton.router.images.source import ImageSource
from tests.vision_checkpoints import MAX_PIXELS, VisionOracle, make_served_vision_model

pytestmark = pytest.mark.slow
LENGTH = 12
ENGINE: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": "32MiB"}


def expected(oracle: VisionOracle, tokens: list[int], file: Path) -> list[int]:
    """Return the oracle's continuation of a prompt with the image of a file."""
    vision = oracle.config.vision
    assert vision is not None
    limits, processor = ImageLimits(9, 1 << 20, 1 << 20), ProcessorConfig(28, 3136, MAX_PIXELS)
    image: Image = resized_image(file.read_bytes(), ImageSource("", ""), limits, processor).at(
        tokens.index(vision.placeholder_id)
    )
    assert tokens.count(vision.placeholder_id) == image.num_tokens
    return oracle.greedy(tokens, [image], LENGTH)


def test_images_are_chatted_about(tmp_path: Path) -> None:
    model = make_served_vision_model(tmp_path / "model")
    oracle = VisionOracle(model)
    files = [tmp_path / f"{seed}.png" for seed in range(3)]
    for seed, file in enumerate(files):
        pixels = np.random.default_rng(seed).integers(0, 256, (80 + 30 * seed, 150, 3), dtype=np.uint8)
        Pillow.fromarray(pixels).save(file)
    encoded = base64.b64encode(files[1].read_bytes()).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": files[0].as_uri()}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}},
        {"type": "image_pil", "image_pil": Pillow.open(files[2])},
    ]
    chats = [[{"role": "user", "content": [part, {"type": "text", "text": "What is this?"}]}] for part in parts]
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    with LLM(model=model, allowed_local_media_path=tmp_path, local_prefill_below=0, **ENGINE) as llm:
        outputs = llm.chat(chats, params, use_tqdm=False)
        outside = {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}
        refused = [{"role": "user", "content": [outside]}]
        with pytest.raises(ValueError, match=r"conversation 1: .* outside of allowed_local_media_path"):
            llm.chat([chats[0], refused], params, use_tqdm=False)
    for output, file in zip(outputs, files, strict=True):
        assert output.outputs[0].token_ids == expected(oracle, output.prompt_token_ids, file)
        assert output.prompt is not None
        assert output.prompt.count("What is this?") == 1
