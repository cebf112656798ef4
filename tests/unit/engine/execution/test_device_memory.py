"""GPU memory available for KV, with a fake meter; the measured steps are computed on a CPU."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError
from baton.engine.execution import device_memory, loaded_model
from baton.engine.execution.batch import Batch
from baton.engine.execution.batch_builder import BatchBuilder
from baton.engine.execution.cuda_graphs import recorded_sizes
from baton.engine.execution.device_memory import RECORDED_BYTES, bytes_for_kv, check_fits, greatest_step
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models import load_model
from baton.engine.models.causal_lm import CausalLM
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.vision.image import Image
from baton.engine.vision.step_images import CACHE_BYTES
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU
from tests.unit.engine.tensor_rig import TensorRig
from tests.vision_checkpoints import make_vision_checkpoint


class ScriptedMeter:
    """Meter that computes what it measures and returns the given peaks, in bytes, in turn."""

    total_bytes = 80_000
    non_torch_bytes = 3_000

    def __init__(self, *peaks: int) -> None:
        self._peaks = list(peaks)

    def peak_bytes(self, compute: Callable[[], object]) -> int:
        compute()
        return self._peaks.pop(0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


def kv_bytes(directory: Path, config: EngineConfig, *peaks: int) -> int:
    model_config = read_model_config(directory, "float32")
    model = load_model(directory, model_config, CPU, attention_for(model_config, config.block_size, CPU))
    layout = KVCacheLayout.of(model_config, config.block_size)
    return bytes_for_kv(
        config, 512, model, layout, model_config.vocab_size, ScriptedMeter(*peaks), records=not config.enforce_eager
    )


def test_weights_activations_and_other_memory_are_subtracted(directory: Path) -> None:
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, enforce_eager=True)
    assert kv_bytes(directory, config, 12_000) == 40_000 - 3_000 - 12_000


def test_the_encoder_of_images_gets_memory_for_the_largest_image_and_its_cache(tmp_path: Path) -> None:
    directory = make_vision_checkpoint(tmp_path / "model")
    served = read_model_config(directory, "float32")
    model = load_model(directory, served, CPU, attention_for(served, 16, CPU))
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, enforce_eager=True)
    layout, encoder = KVCacheLayout.of(served, 16), model.vision
    assert encoder is not None
    sizes: list[int] = []

    class Encoder:
        config = encoder.config

        def encode(self, image: Image) -> Tensor:
            sizes.append(image.num_tokens)
            return encoder.encode(image)

    def left(step: int, image: int) -> int:
        meter = ScriptedMeter(step, image)
        return bytes_for_kv(config, 130, model, layout, served.vocab_size, meter, records=False, encoder=Encoder())

    assert left(12_000, 20_000) == 40_000 - 3_000 - 20_000 - CACHE_BYTES
    assert left(12_000, 5_000) == 40_000 - 3_000 - 12_000 - CACHE_BYTES
    assert sizes == [121, 121], "the largest square of 130 tokens"


def test_memory_of_other_processes_matters_only_if_it_leaves_less_than_the_share(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory, "OWN_BYTES", 2_000)
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, enforce_eager=True)
    assert kv_bytes(directory, config, 12_000) == 40_000 - 2_000 - 12_000
    monkeypatch.setattr(ScriptedMeter, "non_torch_bytes", 50_000)
    assert kv_bytes(directory, config, 12_000) == 76_000 - 50_000 - 12_000


def test_more_kv_than_the_gpu_has_free_is_refused() -> None:
    check_fits(77_000, CPU, ScriptedMeter())
    with pytest.raises(EngineError, match="only 77000 of the 80000 bytes of cpu are free"):
        check_fits(77_001, CPU, ScriptedMeter())


def test_ranks_measure_together(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank computes the greatest step with the others, and samples from its own logits."""
    measured: dict[int, int] = {}

    def load_and_measure(
        path: Path, served: ModelConfig, device: torch.device, attention: AttentionBackend, *rest: Any
    ) -> CausalLM:
        model = load_model(path, served, device, attention, *rest)
        shard = rest[2].shard
        config = EngineConfig(model=str(path), max_num_seqs=4, max_num_batched_tokens=32, gpu_memory_utilization=0.5)
        layout = KVCacheLayout.of(served, 16, 2, 2)
        columns = served.vocab_size // (1 if shard.rank == 0 else 2)
        measured[shard.rank] = bytes_for_kv(config, 512, model, layout, columns, ScriptedMeter(12_000), records=False)
        return model

    monkeypatch.setattr(loaded_model, "load_model", load_and_measure)
    with closing(TensorRig(directory, 2)) as rig:
        assert rig.engine.runner.model is not rig.follower(1)  # both have loaded
        assert measured == dict.fromkeys(range(2), 40000 - 3000 - 12000)


def test_recorded_decodes_get_their_own_memory(directory: Path) -> None:
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, max_num_seqs=5)
    recorded = 2_000 + RECORDED_BYTES * len(recorded_sizes(5))
    assert kv_bytes(directory, config, 12_000, 9_000, 11_000) == 40_000 - 3_000 - 12_000 - recorded


@pytest.mark.parametrize(("max_num_seqs", "max_model_len"), [(8, 1000), (8, 60), (1, 33), (199, 1000)])
def test_the_greatest_step_fills_the_budget(max_num_seqs: int, max_model_len: int) -> None:
    config = EngineConfig(model="none", max_num_batched_tokens=200, max_num_seqs=max_num_seqs)
    step = greatest_step(config, max_model_len)
    assert sum(item.num_new_tokens for item in step) == 200
    assert len(step) >= max_num_seqs
    assert all(item.samples for item in step)
    assert max(item.num_new_tokens for item in step) <= max_model_len


def test_recurrent_states_are_part_of_the_measured_step(tmp_path: Path) -> None:
    assert left_with_states(tmp_path, None) == int(80_000 * 0.9) - 3_000 - 12_000


def test_inputs_of_drafted_tokens_that_recurrent_layers_keep_get_memory(tmp_path: Path) -> None:
    plain = left_with_states(tmp_path, None)
    drafted = [
        plain - left_with_states(tmp_path, f'{{"method": "ngram", "num_speculative_tokens": {count}}}')
        for count in (1, 3, 30)
    ]
    assert drafted[0] > 0
    assert drafted[1] == 2 * drafted[0]  # 3 sequences of 4 tokens instead of 2
    assert drafted[2] == drafted[0] * 32 // 6  # the budget of a step


def test_drafts_in_the_measured_step_exceed_neither_its_budget_nor_the_context(tmp_path: Path) -> None:
    longest: list[int] = []

    def left(num_drafts: int, max_model_len: int, step_tokens: int = 32) -> int:
        options = f'{{"method": "ngram", "num_speculative_tokens": {num_drafts}}}'
        with pytest.MonkeyPatch.context() as patch:
            build = BatchBuilder.build

            def recorded(self: BatchBuilder, scheduled: Sequence[ScheduledRequest], *rest: Any) -> Batch:
                longest.append(max((len(item.drafts) for item in scheduled), default=0))
                return build(self, scheduled, *rest)

            patch.setattr(BatchBuilder, "build", recorded)
            return left_with_states(tmp_path, options, max_model_len, step_tokens)

    assert left(64, 8) == left(7, 8)
    assert left(64, 64, 16) == left(15, 64, 16)
    assert left(64, 1) == left(1, 1)
    assert max(longest) == 15


def left_with_states(
    tmp_path: Path, speculative_config: str | None, max_model_len: int = 64, step_tokens: int = 32
) -> int:
    model_directory = tmp_path / "model"
    if not model_directory.exists():
        make_checkpoint("qwen3-next", model_directory)
    config = EngineConfig(
        model=str(model_directory),
        max_num_seqs=3,
        max_num_batched_tokens=step_tokens,
        gpu_memory_utilization=0.9,
        speculative_config=speculative_config,
    )
    served = read_model_config(Path(config.model), "float32")
    layout = KVCacheLayout.of(served, config.block_size, groups=KVGroups.of(config, served))
    groups = KVGroups.of(config, served).with_states(config, served, layout.block_bytes)
    attention = attention_for(served, config.block_size, CPU)
    model = load_model(Path(config.model), served, CPU, attention, groups=groups)
    meter = ScriptedMeter(12_000)
    assert model.is_recurrent
    columns = served.vocab_size
    return bytes_for_kv(config, max_model_len, model, layout, columns, meter, records=False, groups=groups)
