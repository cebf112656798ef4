"""The parts that the batches of a router share."""

from collections.abc import Mapping
from dataclasses import dataclass

from baton.router.batches.input import InputReader
from baton.router.batches.line_run import LineRunner
from baton.router.batches.metrics import BatchMetrics
from baton.router.batches.slots import Slots
from baton.router.files.store import FileStore


@dataclass(frozen=True, slots=True)
class BatchParts:
    """Services that a running batch uses."""

    files: FileStore
    lines: LineRunner
    inputs: InputReader
    slots: Mapping[str, Slots]  # by model
    metrics: BatchMetrics
