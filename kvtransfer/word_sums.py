"""The sums of `word_checksum` as one Triton kernel: every word is read once, and nothing else from memory."""

import logging
from collections.abc import Callable
from functools import cache

from torch import Tensor

logger = logging.getLogger(__name__)

SumWords = Callable[[Tensor, Tensor], Tensor]


@cache
def word_sums_kernel() -> SumWords | None:
    """The kernel; None where there is no Triton, and then torch's operations read and write the words some times."""
    try:
        from kvtransfer.word_sums_triton import sum_words
    except ImportError as error:
        logger.warning("checksums of KV blocks are made with torch's operations, Triton is missing: %s", error)
        return None
    return sum_words
