"""The sums of `word_checksum` as one Triton kernel: every word is read once, and nothing else from memory."""

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from baton.kvtransfer.torch_failures import first_line

logger = logging.getLogger(__name__)

SumWords = Callable[[Tensor, Tensor], Tensor]


@cache
def word_sums_kernel(device: torch.device, in_torch: SumWords) -> SumWords | None:
    """The kernel, if it sums some words on the device as `in_torch` does; else None, and the log says why.

    That Triton is there says little: it compiles when it first runs, and wants a C compiler then. Without the kernel
    torch's operations read and write the words some times.
    """
    try:
        kernel = load_kernel()
        words = torch.arange(1, 3001, device=device).mul_(-7046029254386353131).view(6, 500)
        units = torch.tensor([4, 0, 5], device=device)
        if not torch.equal(kernel(words, units), in_torch(words, units)):
            raise ArithmeticError("its sums are wrong")
    except Exception as error:  # whatever Triton, a compiler or the driver raises
        reason = f"{type(error).__name__}: {first_line(error)}"
        logger.warning("checksums of KV blocks are made with torch's operations, Triton does not do here: %s", reason)
        return None
    return kernel


def load_kernel() -> SumWords:
    """Raises ImportError where there is no Triton."""
    from baton.kvtransfer.checksum.word_sums_triton import sum_words

    return sum_words
