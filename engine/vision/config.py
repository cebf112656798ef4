"""Options of a model for images: plain data, no torch."""

from dataclasses import dataclass

CHANNELS = 3  # red, green, blue
# Of the channels after the division by 255; CLIP's (arXiv 2103.00020), with which Qwen2.5-VL was trained.
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The vision encoder of Qwen2.5-VL (arXiv 2502.13923), and how its images stand among the tokens."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int  # pixels, of each side
    merge_size: int  # patches of each side that become one token
    temporal_patch_size: int  # frames of a patch; an image is repeated for each
    window_size: int  # pixels, of each side: attention is within a window
    full_layers: frozenset[int]  # layers whose patches attend to the whole image
    placeholder_id: int  # token whose embeddings are replaced by an image's
    rotary_sections: tuple[int, int, int]  # rotated pairs that follow the time, the row and the column of a token

    @property
    def token_size(self) -> int:
        """Pixels of each side of a token."""
        return self.patch_size * self.merge_size

    def num_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of an image's pixels that has this many tokens."""
        return rows * columns * self.token_size**2 * CHANNELS
