"""A tiny random Qwen2.5-VL, saved by transformers, and prompts with images for it."""

import json
import random
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.vision.image import Image
from baton.engine.vision.patches import patches_of
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import randomise

PLACEHOLDER, START, END = VOCAB_SIZE - 1, VOCAB_SIZE - 3, VOCAB_SIZE - 2
TOKEN_SIZE = 28


def make_vision_checkpoint(
    directory: Path,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    ids: tuple[int, int, int] | None = None,
    text: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
) -> Path:
    """Save a random model; windows of two tokens, so that images have several, and one layer attends to the whole.

    ids: of the placeholder, and of what begins and ends an image. text, vision: other options of both configs."""
    import transformers

    placeholder, start, end = ids or (PLACEHOLDER, START, END)
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": VOCAB_SIZE if tokenizer is None else tokenizer.get_vocab_size(),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "initializer_range": 0.15,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
            **(text or {}),
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "window_size": 2 * TOKEN_SIZE,
            "fullatt_block_indexes": [1],
            "initializer_range": 0.15,
            **(vision or {}),
        },
        image_token_id=placeholder,
        video_token_id=placeholder - 20,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
        randomise(model)
    model.save_pretrained(directory)
    if tokenizer is not None:
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    return directory


def random_image(rows: int, columns: int, seed: int, start: int = 0) -> Image:
    """An image of noise, of this many tokens."""
    pixels = random.Random(seed).randbytes(rows * columns * TOKEN_SIZE**2 * 3)
    digest = blake2b(bytes([rows, columns]) + pixels, digest_size=16).digest()
    return Image(start, rows, columns, digest, pixels)


def prompt_of(parts: Sequence[list[int] | Image]) -> tuple[list[int], tuple[Image, ...]]:
    """Token ids of texts and images, and the images at their places."""
    tokens: list[int] = []
    images: list[Image] = []
    for part in parts:
        if isinstance(part, Image):
            tokens.append(START)
            images.append(Image(len(tokens), part.rows, part.columns, part.digest, part.pixels))
            tokens += [PLACEHOLDER] * part.num_tokens + [END]
        else:
            tokens += part
    return tokens, tuple(images)


def random_text(count: int, seed: int) -> list[int]:
    """Token ids that mean no image."""
    return random.Random(seed).choices(range(3, START - 20), k=count)


class VisionOracle:
    """The checkpoint in transformers, in fp32."""

    def __init__(self, checkpoint: Path) -> None:
        import transformers

        self.config = read_model_config(checkpoint)
        self.model: Any = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def inputs(self, tokens: list[int], images: Sequence[Image]) -> dict[str, Any]:
        """Arguments of the model."""
        vision = self.config.vision
        assert vision is not None
        ids = torch.tensor([tokens])
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if images:
            given["pixel_values"] = torch.cat([patches_of(image, vision, torch.device("cpu")) for image in images])
            given["image_grid_thw"] = torch.tensor([[1, 2 * each.rows, 2 * each.columns] for each in images])
            given["mm_token_type_ids"] = (ids == vision.placeholder_id).int()
        return given

    @torch.inference_mode()
    def logits(self, tokens: list[int], images: Sequence[Image]) -> torch.Tensor:
        """The logits after each token."""
        logits: torch.Tensor = self.model(**self.inputs(tokens, images)).logits[0].float()
        return logits

    @torch.inference_mode()
    def greedy(self, tokens: list[int], images: Sequence[Image], count: int) -> list[int]:
        """The most probable continuation."""
        output = self.model.generate(
            **self.inputs(tokens, images), do_sample=False, max_new_tokens=count, eos_token_id=None
        )
        found: list[int] = output[0, len(tokens) :].tolist()
        return found


BUNDLED = Path(__file__).parents[1] / "baton" / "bundled_model"
MAX_PIXELS = 40 * TOKEN_SIZE**2
MARKS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}{%- endif -%}{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""


def make_served_vision_model(directory: Path) -> Path:
    """Save a model that a router can serve: with the bundled tokenizer, a chat template and a processor."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    tokenizer.add_special_tokens([*MARKS, "<|video_pad|>"])  # an even number of tokens: two ranks divide them
    placeholder, start, end = map(tokenizer.token_to_id, MARKS)
    make_vision_checkpoint(directory, tokenizer=tokenizer, ids=(placeholder, start, end))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "preprocessor_config.json").write_text(json.dumps({"min_pixels": 3136, "max_pixels": MAX_PIXELS}))
    return directory
