"""Layers that take turns in memory, from a real file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.engine.offload.layer_stream import LayerStream
from tests.unit.engine.offload.file_rig import FileRig, written


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[FileRig]:
    with written(tmp_path / "weights", num_layers=5) as rig:
        yield rig


def stream_of(rig: FileRig, *layers: int) -> LayerStream:
    stream = LayerStream(rig.reader, {unit.layer: [unit] for unit in rig.units if unit.layer in layers})
    stream.begin()
    return stream


def test_each_layer_is_there_while_it_computes_and_two_at_most(rig: FileRig) -> None:
    stream = stream_of(rig, 0, 1, 2, 4)
    for _ in range(3):
        for layer in (0, 1, 2, 4):
            with stream.residency(layer):
                assert rig.has(layer)
                assert not rig.has(3), "it does not stream"
            assert not rig.has(layer)
            rig_bytes = sum(int(weight.any()) for weight in rig.weights.values())
            assert rig_bytes <= 2


def test_a_step_that_ended_early_is_followed_by_a_whole_one(rig: FileRig) -> None:
    stream = stream_of(rig, *range(5))
    for layers in (range(2), range(5), (3,), range(5)):
        for layer in layers:
            with stream.residency(layer):
                assert rig.has(layer)


def test_a_layer_that_fails_is_left(rig: FileRig) -> None:
    stream = stream_of(rig, *range(5))
    with pytest.raises(ValueError, match="of the layer"), stream.residency(0):
        raise ValueError("of the layer")
    with stream.residency(0):
        assert rig.has(0)


def test_reads_are_counted(rig: FileRig) -> None:
    stream = stream_of(rig, *range(5))
    for layer in range(5):
        with stream.residency(layer):
            pass
    counters = rig.reader.counters
    assert counters.num_read_bytes == sum(unit.num_bytes for unit in rig.units) + 2 * rig.units[0].num_bytes
    assert counters.waited_s > 0
    assert counters.progressed_s > 0
