"""Masks of tokens as bits: bit `i % 32` of element `i // 32` is token `i`."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

WORD_BITS = 32


def mask_of(token_ids: Collection[int], num_words: int) -> Tensor:
    """Return a mask with the bits of some tokens, [num_words] int32."""
    bits = torch.zeros(num_words * WORD_BITS, dtype=torch.int64)
    bits[list(token_ids)] = 1
    words = (bits.view(num_words, WORD_BITS) << torch.arange(WORD_BITS)).sum(-1)
    return words.to(torch.int32)  # the upper half wraps around to negative numbers


def has_token(mask: Tensor, token_id: int) -> bool:
    """Return whether a mask, [num_words] int32, has a token."""
    return bool(int(mask[token_id // WORD_BITS]) >> (token_id % WORD_BITS) & 1)


def only_token(mask: Tensor) -> int | None:
    """Return the only token of a mask, [num_words] int32; None if it has none or several."""
    words = mask.numpy()
    [places] = np.nonzero(words)
    if len(places) != 1:
        return None
    word = int(words[places[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(places[0]) * WORD_BITS + word.bit_length() - 1
