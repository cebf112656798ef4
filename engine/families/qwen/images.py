"""Qwen2.5-VL (arXiv 2502.13923), with its images."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.base import LANGUAGE_MODEL, Family
from baton.engine.families.options import unsupported
from baton.engine.families.qwen.text import QWEN2
from baton.engine.vision.config import CHANNELS, VisionConfig

NUM_AXES = 3  # time, row, column
FULL_LAYERS, DEFAULT_FULL_LAYERS = "fullatt_block_indexes", (7, 15, 23, 31)


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(QWEN2.read(config, shared), vision=_read_vision(config, shared))


def _read_vision(config: JsonObject, shared: ModelConfig) -> VisionConfig:
    vision = config.inner("vision_config")
    for key, value in (("hidden_act", "silu"), ("in_channels", CHANNELS), ("out_hidden_size", shared.hidden_size)):
        if key in vision and vision.raw(key) != value:
            raise unsupported(config, shared.architecture, f"vision_config.{key} {shown(vision.raw(key))}")
    read = VisionConfig(
        num_layers=vision.size("depth", 32, maximum=4096),
        hidden_size=vision.size("hidden_size", 3584),
        intermediate_size=vision.size("intermediate_size", 3420),
        num_heads=vision.size("num_heads", 16),
        patch_size=vision.size("patch_size", 14),
        merge_size=vision.size("spatial_merge_size", 2),
        temporal_patch_size=vision.size("temporal_patch_size", 2),
        window_size=vision.size("window_size", 112),
        full_layers=frozenset(vision.integers(FULL_LAYERS) if FULL_LAYERS in vision else DEFAULT_FULL_LAYERS),
        placeholder_id=config.size("image_token_id", 151655, minimum=0, maximum=shared.vocab_size - 1),
        rotary_sections=_read_sections(config, shared),
    )
    if read.hidden_size % (4 * read.num_heads):
        raise InvalidCheckpoint(f"{vision.source}: hidden_size must be a multiple of 4 for each of the heads")
    if read.window_size < read.token_size:
        raise InvalidCheckpoint(f"{vision.source}: window_size {read.window_size} must be at least {read.token_size}")
    return read


def _read_sections(config: JsonObject, shared: ModelConfig) -> tuple[int, int, int]:
    """Return the rotated pairs that follow each axis of an image."""
    rotary = config.inner("rope_scaling" if "rope_scaling" in config else "rope_parameters")
    sections = rotary.integers("mrope_section") or [16, 24, 24]
    pairs = shared.rope.rotary_dim // 2
    if len(sections) != NUM_AXES or min(sections) < 0 or sum(sections) != pairs:
        raise InvalidCheckpoint(f"{rotary.source}: mrope_section must be {NUM_AXES} numbers with the sum {pairs}")
    return sections[0], sections[1], sections[2]


QWEN2_5_VL = Family(
    title="Qwen2.5-VL",
    architectures=("Qwen2_5_VLForConditionalGeneration",),
    read=_read,
    reads=QWEN2.reads,
    defaults=QWEN2.defaults,
    theta=1e6,
    rms_norm_eps=1e-5,
    has_text_config=True,
    prefixes=(("model.visual.", "visual."), *LANGUAGE_MODEL),
)
