"""Image tokens among the tokens of a step, as the model reads them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Embeddings of image tokens, and the rotary positions of all tokens of their step, on the model's device."""

    rows: Tensor  # [num_image_tokens] int64: index in the step of each image token
    vectors: Tensor  # [num_image_tokens, hidden]
    positions: Tensor  # [3, num_tokens] int64: time, row and column of each token of the step
