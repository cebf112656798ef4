"""Reader of traces for the twin, with the lengths and shared prefixes that `baton bench` sends."""

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from baton.engine.kv.block_hash import pack_hashes, root_hash
from baton.loadtool.datasets.azure import AzureTrace
from baton.loadtool.datasets.base import Dataset
from baton.loadtool.datasets.files import lines_of
from baton.loadtool.datasets.mooncake import HASH_TOKENS, MooncakeTrace
from baton.loadtool.errors import DatasetError, SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary, token_range
from baton.simulation.twin.trace_request import TraceRequest

AZURE_COLUMN = "ContextTokens"
VOCABULARY = (100, 1000)  # token ids of prompts; it only matters which are equal


def read_trace(
    path: Path,
    *,
    lengths: Lengths | None = None,
    block_size: int | None = None,
    rate_scale: float = 1.0,
    seconds: float | None = None,
    seed: int = 0,
) -> list[TraceRequest]:
    """Return the requests of the first `seconds`, after the rate is multiplied by `rate_scale`.

    block_size: tokens per cache block; None: the tokens that a hash of the trace stands for. Raises DatasetError if the
    file is not a trace, and SettingError if the settings leave no request.
    """
    if not 0 < rate_scale < float("inf"):
        raise SettingError(f"--rate-scale {rate_scale:g}: it must be above 0")
    lengths = lengths or Lengths()
    size = block_size or granule(lengths)
    end_s = float("inf") if seconds is None else seconds
    timed = (_timed(request, rate_scale, size) for request in _dataset(path, lengths).requests(seed))
    requests = list(takewhile(lambda request: request.due_s < end_s, timed))
    if not requests:
        raise SettingError(f"{path}: no request arrives within {end_s:g} s")
    return requests


def granule(lengths: Lengths) -> int:
    """Return the tokens that a hash of a Mooncake trace stands for; shorter shared prefixes are unknown."""
    return max(1, round(HASH_TOKENS * lengths.scale))


def _dataset(path: Path, lengths: Lengths) -> Dataset:
    """Open a trace, whose format is detected from the first line."""
    head = next((line for _, line in lines_of(path)), None)
    if head is None:
        raise DatasetError(f"{path}: no requests")
    kind: Callable[[Path, Vocabulary, Lengths], Dataset] = AzureTrace if AZURE_COLUMN in head else MooncakeTrace
    return kind(path, token_range(*VOCABULARY), lengths)


def _timed(request: LoadRequest, rate_scale: float, block_size: int) -> TraceRequest:
    assert request.due_s is not None
    assert not isinstance(request.prompt, str)
    return TraceRequest(
        due_s=request.due_s / rate_scale,
        num_prompt_tokens=len(request.prompt),
        num_output_tokens=request.num_output_tokens,
        hashes=pack_hashes(root_hash(), request.prompt.tolist(), block_size),
    )
