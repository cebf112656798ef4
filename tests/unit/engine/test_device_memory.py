"""What is left for KV on a GPU, with a meter in the GPU's place; the steps that it measures are computed, on a CPU."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.attention.choice import attention_for
from engine.config import EngineConfig
from engine.device_memory import RECORDED_BYTES, bytes_for_kv, greatest_step
from engine.graphed_model import recorded_sizes
from engine.kv_cache import KVCacheLayout
from engine.model_config import read_model_config
from engine.models import load_model
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU


class ScriptedMeter:
    """See Meter: computes what it measures, and has an answer for each measurement in turn."""

    total_bytes = 80_000
    foreign_bytes = 3_000

    def __init__(self, *peaks: int) -> None:
        self._peaks = list(peaks)

    def peak_bytes(self, compute: Callable[[], object]) -> int:
        compute()
        return self._peaks.pop(0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


def left(directory: Path, config: EngineConfig, *peaks: int) -> int:
    model_config = read_model_config(directory, "float32")
    model = load_model(directory, model_config, CPU, attention_for(model_config, config.block_size, CPU))
    layout = KVCacheLayout.of(model_config, config.block_size)
    return bytes_for_kv(config, model_config, model, layout, ScriptedMeter(*peaks))


def test_weights_activations_and_others_are_taken_off(directory: Path) -> None:
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, enforce_eager=True)
    assert left(directory, config, 12_000) == 40_000 - 3_000 - 12_000


def test_recorded_decodes_have_memory_of_their_own(directory: Path) -> None:
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, max_num_seqs=5)
    recorded = 2_000 + RECORDED_BYTES * len(recorded_sizes(5))
    assert left(directory, config, 12_000, 9_000, 11_000) == 40_000 - 3_000 - 12_000 - recorded


@pytest.mark.parametrize(("max_num_seqs", "max_model_len"), [(8, 1000), (8, 60), (1, 33), (199, 1000)])
def test_the_greatest_step_is_as_large_as_steps_get(max_num_seqs: int, max_model_len: int) -> None:
    config = EngineConfig(model="none", max_num_batched_tokens=200, max_num_seqs=max_num_seqs)
    step = greatest_step(config, max_model_len)
    assert sum(item.num_new_tokens for item in step) == 200
    assert len(step) >= max_num_seqs
    assert all(item.samples for item in step)
    assert max(item.num_new_tokens for item in step) <= max_model_len
