"""Files of weights: damaged, incomplete, shared, or of another checkpoint. Never wrong tokens."""

import logging
import os
import resource
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.weights_hash import WeightsHash
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError, InvalidCheckpoint
from baton.engine.offload.address_space import AddressSpace
from baton.engine.offload.disk_offload import DiskOffload
from baton.engine.offload.file_store import FileStore
from baton.engine.offload.file_writer import FileContents, FileWriter
from baton.engine.offload.unit_reads import UnitReader
from baton.engine.offload.weights_file import WeightsFile
from tests.checkpoints import make_checkpoint
from tests.unit.engine.offload.file_rig import never, numbered
from tests.unit.engine.offload.offload_rig import config_of, outputs, requests, running

LEAST = 300_000  # bytes of memory, with which most layers stream


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("model") / "model", num_hidden_layers=8)


@pytest.fixture(scope="module")
def expected(model: Path) -> Any:
    with running(config_of(model)) as engine:
        return outputs(engine, requests(1))


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the model's file."""
    directory = tmp_path_factory.mktemp("written")
    with running(offloaded(model, directory)):
        return directory


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    """A copy of that directory."""
    return Path(shutil.copytree(written, tmp_path / "weights"))


def offloaded(model: Path, directory: Path, **options: Any) -> EngineConfig:
    given = {"weights_offload_dir": str(directory), "weights_memory_bytes": LEAST}
    return config_of(model, weights_offload="disk", **(given | options))


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("*.weights")
    return path


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)


def cut_by_half(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_weight(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        (byte,) = file.read(1)
        file.seek(5000)
        file.write(bytes([byte ^ 1]))


def flip_the_layout(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 300)
        (byte,) = file.read(1)
        file.seek(path.stat().st_size - 300)
        file.write(bytes([byte ^ 1]))


def test_the_second_start_reads_the_file(
    model: Path, directory: Path, expected: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = only_file(directory).stat()
    with caplog.at_level(logging.INFO), running(offloaded(model, directory)) as engine:
        assert outputs(engine, requests(1)) == expected
        assert engine.stats().offload.num_read_bytes > 0
    assert only_file(directory).stat().st_mtime_ns == before.st_mtime_ns
    assert "stream in each step" in caplog.text
    assert "tokens/s at most" in caplog.text
    assert "writing the weights" not in caplog.text


@pytest.mark.parametrize("damage", [cut, cut_by_half, empty, flip_a_weight, flip_the_layout])
def test_a_damaged_file_is_laid_out_again(
    model: Path, directory: Path, expected: Any, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(only_file(directory))
    with running(offloaded(model, directory)) as engine:
        assert outputs(engine, requests(1)) == expected
    assert "is laid out again" in caplog.text


def test_what_a_killed_process_leaves_is_replaced(model: Path, directory: Path, expected: Any) -> None:
    path = only_file(directory)
    partial = path.rename(path.with_suffix(".partial"))
    cut_by_half(partial)
    with running(offloaded(model, directory)) as engine:
        assert outputs(engine, requests(1)) == expected
    assert only_file(directory) == path
    assert not partial.exists()


@pytest.mark.parametrize("damage", [cut_by_half, flip_a_weight])
def test_a_file_that_changes_in_use_ends_the_engine(
    model: Path, directory: Path, damage: Callable[[Path], None]
) -> None:
    with running(offloaded(model, directory)) as engine:
        damage(only_file(directory))
        with pytest.raises(EngineError, match=r"\.weights was (cut short|written to) while it was in use"):
            outputs(engine, requests(1))


def test_a_file_that_is_removed_in_use_is_still_read(model: Path, directory: Path, expected: Any) -> None:
    with running(offloaded(model, directory)) as engine:
        only_file(directory).unlink()
        assert outputs(engine, requests(1)) == expected


def test_another_checkpoint_gets_a_file_of_its_own(model: Path, directory: Path, tmp_path: Path) -> None:
    other = make_checkpoint("llama3", tmp_path / "model", seed=1, num_hidden_layers=8)
    with running(config_of(other)) as engine:
        expected = outputs(engine, requests(1))
    with running(offloaded(other, directory)) as engine:
        assert outputs(engine, requests(1)) == expected
    with running(offloaded(model, directory)) as engine:
        assert outputs(engine, requests(1)) != expected
    assert len(list(directory.glob("*.weights"))) == 2


def test_a_checkpoint_that_changes_while_it_is_laid_out_leaves_no_file(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    config = offloaded(copy, tmp_path / "weights")

    def load(placement: Any) -> Any:
        with (copy / "model.safetensors").open("r+b") as file:
            file.write(b"\0")

    with WeightsHash(copy) as weights_hash, pytest.raises(InvalidCheckpoint, match="changed while it was read"):
        DiskOffload(config, model_config_of(config), weights_hash.revision).load(load)
    assert [path.suffix for path in (tmp_path / "weights").iterdir()] == [".lock"]


def test_processes_that_start_at_once_write_one_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Locks of one file by two descriptors exclude each other within a process too."""
    store, entered, done = FileStore(tmp_path), Event(), []

    def second() -> None:
        with store.writing("name", 0):
            done.append(True)
            entered.set()

    with caplog.at_level(logging.INFO), store.writing("name", 0):
        thread = Thread(target=second)
        thread.start()
        while "waiting for another process" not in caplog.text:
            assert not entered.wait(0.01)
    thread.join()
    assert done


def test_a_disk_without_space_is_refused_with_numbers(tmp_path: Path) -> None:
    message = r"has [\d.]+ GB free, but the weights take 1152921504.61 GB"
    with pytest.raises(EngineError, match=message), FileStore(tmp_path).writing("name", 1 << 60):
        pass


@contextmanager
def files_up_to(num_bytes: int) -> Any:
    """Let larger files fail to grow, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_leaves_no_file(model: Path, tmp_path: Path) -> None:
    with files_up_to(200_000), pytest.raises(EngineError, match="cannot hold the model's weights: File too large"):
        Engine(offloaded(model, tmp_path))
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("parent", ["/proc", "/dev/null"])
def test_a_directory_that_cannot_be_made_is_refused(model: Path, parent: str) -> None:
    with pytest.raises(EngineError, match=f"weights_offload_dir:? {parent}/weights.* cannot be (written to|read)"):
        Engine(offloaded(model, Path(parent) / "weights"))


def test_memory_for_all_weights_keeps_them(model: Path, directory: Path, expected: Any) -> None:
    with running(offloaded(model, directory, weights_memory_bytes=1 << 30)) as engine:
        assert outputs(engine, requests(1)) == expected
        assert engine.stats().offload.num_read_bytes == 0
        assert isinstance(engine.weights_source, UnitReader)


def test_an_engine_that_closes_or_cannot_start_leaves_no_file_open(model: Path, directory: Path) -> None:
    path = only_file(directory)
    with running(offloaded(model, directory)) as engine:
        assert num_open(path) == 1
        source = engine.weights_source
    source.close()  # again
    assert num_open(path) == 0
    with pytest.raises(EngineError, match="must be at least"):
        Engine(offloaded(model, directory, weights_memory_bytes=1))
    path.unlink()
    with pytest.raises(EngineError, match="must be at least"):  # after it is written
        Engine(offloaded(model, directory, weights_memory_bytes=1))
    assert num_open(path) == 0


def num_open(path: Path) -> int:
    return sum(str(path) == os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())


def test_files_of_other_checkpoints_are_listed(model: Path, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own = only_file(directory)
    with running(offloaded(model, directory)):
        assert "of other models or versions" not in caplog.text
    (directory / "older.weights").write_bytes(bytes(20_000_000))
    with running(offloaded(model, directory)):
        assert "has 0.02 GB in 1 weights files of other models or versions" in caplog.text
        assert "not needed: older.weights" in caplog.text
    assert own.exists()


def test_the_progress_of_writing_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    times_s = iter((0.0, 1.0, 5.0, 6.0, 11.0))  # at the start, and after each weight
    form = numbered(1)
    num_bytes = form.tensors["weight"].nbytes
    writer = FileWriter(tmp_path / "file", AddressSpace(1 << 20), 4 * num_bytes, times_s.__next__)
    writer.begin_layer(0)
    for _ in range(4):
        writer.place(lambda: form)
    writer.end_layer()
    writer.discard()
    assert [record.message for record in caplog.records] == [
        "weights offload: 50% of 0.00 GB are written",
        "weights offload: 100% of 0.00 GB are written",
    ]


def test_a_file_whose_weights_are_of_other_tensors_is_not_used(tmp_path: Path) -> None:
    """Such as one of a release that reads a layer's projections in another order."""
    writer = FileWriter(tmp_path / "file", AddressSpace(1 << 20))
    writer.begin_layer(0)
    writer.place(lambda: numbered(1), names=("layers.0.k_proj.weight",))
    writer.end_layer()
    writer.finish()
    file = WeightsFile(tmp_path / "file")
    contents = FileContents(file.layout, AddressSpace(file.layout.num_bytes))
    contents.begin_layer(0)
    text = "has layers.0.k_proj.weight of layer 0 where layers.0.q_proj.weight of layer 0 is wanted"
    with pytest.raises(EngineError, match=text):
        contents.place(never, names=("layers.0.q_proj.weight",))
    file.close()


def test_the_layout_names_the_tensors_of_a_checkpoint(directory: Path) -> None:
    file = WeightsFile(only_file(directory))
    names = [name for weight in file.layout.weights for name in weight.names]
    assert "model.layers.7.mlp.down_proj.weight" in names
    assert not [name for name in names if "norm" in name]  # these stay in memory
    assert all(weight.names for weight in file.layout.weights)
    file.close()
