"""A loaded model whose weights are in a file: what stays in memory is read, and the rest will stream."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from baton.engine.layers.moe import MoE
from baton.engine.layers.parallel_experts import ParallelExperts
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.decoder_layer import DecoderLayer
from baton.engine.offload.address_space import AddressSpace
from baton.engine.offload.cached_experts import CachedExperts
from baton.engine.offload.config import OffloadConfig
from baton.engine.offload.counters import OffloadCounters
from baton.engine.offload.expert_cache import ExpertCache
from baton.engine.offload.layer_stream import LayerStream
from baton.engine.offload.layout import Unit, total_bytes
from baton.engine.offload.residency import Residency
from baton.engine.offload.unit_reads import UnitReader
from baton.engine.offload.weights_file import WeightsFile

log = logging.getLogger(__name__)

SAMPLE_BYTES = 256 << 20  # read to measure the disk


@dataclass(frozen=True, slots=True)
class StreamedModel:
    """A model, and the reader that its layers and experts wait for."""

    model: CausalLM
    reader: UnitReader

    @classmethod
    def of(
        cls,
        model: CausalLM,
        file: WeightsFile,
        space: AddressSpace,
        config: OffloadConfig,
        other_bytes: int,
        num_chosen: int,
    ) -> "StreamedModel":
        """Let a model's layers and experts wait for their weights; see Residency for the numbers.

        Raises EngineError for too little memory.
        """
        units = file.layout.units
        residency = Residency.of(units, other_bytes, num_chosen, config)
        reader = UnitReader(file, space)
        with ExitStack() as on_failure:
            on_failure.callback(reader.close)
            reader.start(residency.resident).wait()
            cached = [unit for unit in units if unit.expert is not None] if residency.expert_bytes else []
            bytes_per_s = _measured(reader, [*(unit for each in residency.streamed.values() for unit in each), *cached])
            reader.counters = OffloadCounters(file.layout.num_bytes)
            if residency.streamed:
                _stream_layers(model, LayerStream(reader, residency.streamed), residency)
            if cached:
                _cache_experts(model.layers, reader, _by_expert(cached), residency.expert_bytes)
            on_failure.pop_all()
        _describe(file, residency, cached, num_chosen, bytes_per_s)
        return cls(model, reader)


def _stream_layers(model: CausalLM, stream: LayerStream, residency: Residency) -> None:
    model.layers = [
        replace(layer, residency=stream.residency(index)) if index in residency.streamed else layer
        for index, layer in enumerate(model.layers)
    ]
    stream.begin()


def _measured(reader: UnitReader, units: list[Unit]) -> float:
    """Return the bytes per second at which units are read; some are read for it."""
    left, num_bytes, started_s = SAMPLE_BYTES, 0, time.perf_counter()
    for unit in units:
        if left <= 0:
            break
        reader.start([unit]).wait()
        reader.drop(unit)
        left, num_bytes = left - unit.num_bytes, num_bytes + unit.num_bytes
    return num_bytes / max(time.perf_counter() - started_s, 1e-9)


def _by_expert(units: list[Unit]) -> dict[int, dict[int, Unit]]:
    layers: dict[int, dict[int, Unit]] = {}
    for unit in units:
        assert unit.expert is not None
        experts = layers.setdefault(unit.layer, {})
        assert unit.expert not in experts, "an expert's weights follow each other"
        experts[unit.expert] = unit
    return layers


def _cache_experts(
    layers: Sequence[DecoderLayer], reader: UnitReader, units: Mapping[int, Mapping[int, Unit]], num_bytes: int
) -> None:
    cache, found = ExpertCache(reader, units, num_bytes), set()
    for index, layer in enumerate(layers):
        mixture = layer.feed_forward.experts if isinstance(layer.feed_forward, ParallelExperts) else layer.feed_forward
        if isinstance(mixture, MoE):
            mixture.experts.wrap_products(partial(CachedExperts, cache=cache, layer=index))
            found.add(index)
    assert found == units.keys(), "experts of the other layers would never be read"


def _describe(file: WeightsFile, residency: Residency, experts: Sequence[Unit], num_chosen: int, rate: float) -> None:
    """Log what is read for each step, and the tokens per second that the disk allows. rate: bytes per second."""
    streamed_bytes = sum(total_bytes(each) for each in residency.streamed.values())
    total = total_bytes(file.layout.units)
    if not streamed_bytes and not experts:
        log.info("weights offload: all %.2f GB of %s stay in memory", total / 1e9, file.path)
        return
    expert_bytes = total_bytes(experts)
    step_bytes = float(streamed_bytes)
    if experts:
        num_layers = len({unit.layer for unit in experts})
        missing = 1 - residency.expert_bytes / expert_bytes
        step_bytes += num_layers * num_chosen * expert_bytes / len(experts) * missing
    log.info(
        "weights offload: of %.2f GB in %s, %.2f GB of layers stream in each step, and experts of %.2f GB share %.2f "
        "GB of memory; at the measured %.2f GB/s one request gets about %.2g tokens/s at most",
        *(total / 1e9, file.path, streamed_bytes / 1e9, expert_bytes / 1e9, residency.expert_bytes / 1e9),
        *(rate / 1e9, rate / max(step_bytes, 1)),
    )
