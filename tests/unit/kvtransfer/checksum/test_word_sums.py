"""Selection of the Triton kernel, which is used only if a trial run gives the right sums."""

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from baton.kvtransfer.checksum import word_checksum as word_sums
from baton.kvtransfer.checksum.word_checksum import SumWords, sum_words_in_torch, word_sums_kernel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    word_sums_kernel.cache_clear()
    yield
    word_sums_kernel.cache_clear()


def no_triton() -> SumWords:
    raise ImportError("No module named 'triton'")


def no_compiler() -> SumWords:
    def sum_words(words: Tensor, units: Tensor) -> Tensor:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nand more")

    return sum_words


def wrong_sums() -> SumWords:
    return lambda words, units: sum_words_in_torch(words, units) + 1


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (no_triton, "ImportError: No module named 'triton'"),
        (no_compiler, "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."),
        (wrong_sums, "ArithmeticError: its sums are wrong"),
    ],
)
def test_a_kernel_that_fails_is_not_used_and_the_reason_is_logged(
    load: Callable[[], SumWords], reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(word_sums, "load_kernel", load)
    assert word_sums_kernel(CPU, sum_words_in_torch) is None
    assert word_sums_kernel(CPU, sum_words_in_torch) is None
    (record,) = caplog.records  # once, not per request
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith(f"Triton does not work here: {reason}")


def test_a_kernel_with_right_sums_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(words: Tensor, units: Tensor) -> Tensor:
        return sum_words_in_torch(words, units)

    monkeypatch.setattr(word_sums, "load_kernel", lambda: kernel)
    assert word_sums_kernel(CPU, sum_words_in_torch) is kernel
