"""Checks of directories of weights, and of stores of KV."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from baton.doctor import storage
from baton.doctor.finding import Finding, Level
from baton.doctor.storage import DirectReads, check_kv_store, check_weights_directory
from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.factory import open_store
from tests.unit.kvtransfer.store.store_rig import NAMESPACE, read, write

GB = 10**9


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "NUM_CHUNKS", 2)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the free space of all disks."""

    def set_free(num_bytes: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=num_bytes))

    return set_free


def levels(findings: list[Finding]) -> dict[str, Level]:
    assert all(finding.remedy for finding in findings if finding.level is not Level.OK)
    return {finding.check: finding.level for finding in findings}


def test_a_directory_of_weights_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(1000))
    (model / "config.json").write_bytes(bytes(1 << 20))
    directory = tmp_path / "weights"
    directory.mkdir()
    name = "old-model-0123456789abcdef0123456789abcdef"
    (directory / f"{name}.weights").write_bytes(bytes(2000))
    findings = check_weights_directory(directory, model)
    assert set(levels(findings)) == {"weights-space", "weights-direct-reads", "weights-read-speed"}
    assert f"a token of {name} reads at most 0.00 GB" in findings[2].found
    assert f"a token of {model} reads" in findings[2].found
    assert [each.name for each in directory.iterdir()] == [f"{name}.weights"]


def test_a_checkpoint_that_cannot_be_measured_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, model = tmp_path / "weights", tmp_path / "model"
    directory.mkdir()
    model.mkdir()
    (model / "pytorch_model.bin").touch()
    found = check_weights_directory(directory, model)
    assert levels(found)["weights-checkpoint"] is Level.WARNING
    assert "a token of" not in found[-1].found

    def refuse(_: Path) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(model))

    monkeypatch.setattr(storage, "_checkpoint_bytes", refuse)
    [refused] = check_weights_directory(directory, model)
    assert (refused.level, refused.found) == (Level.FAILURE, f"{model}: Permission denied")


def test_too_little_space_or_speed_and_no_direct_reads_are_warnings(
    tmp_path: Path, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.gguf").touch()
    monkeypatch.setattr(storage, "_checkpoint_bytes", lambda _: 60 * GB)
    monkeypatch.setattr(storage, "measure_direct_reads", lambda _: DirectReads(False, 0.2 * GB))
    free(50 * GB)
    findings = check_weights_directory(tmp_path, tmp_path / "large.gguf")
    assert set(levels(findings).values()) == {Level.WARNING}
    assert "has 50.00 GB free; the checkpoint has 60.00 GB" in findings[0].found
    assert f"0.20 GB/s; a token of {tmp_path}/large.gguf reads at most 60.00 GB, in 3e+02 s" in findings[2].found
    free(1000)
    [space] = check_weights_directory(tmp_path)  # none to measure with
    assert (space.check, space.level) == ("weights-space", Level.WARNING)
    [missing] = check_weights_directory(tmp_path / "missing")
    assert missing.level is Level.FAILURE


def test_a_store_is_used_and_keeps_its_blocks(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), NAMESPACE, 4000)
    write(store, 0, 1)
    finding = check_kv_store(str(tmp_path))
    assert (finding.check, finding.level) == ("kv-store", Level.OK)
    assert "blocks of 1 MiB: written at" in finding.found
    assert read(store, 0)
    assert read(store, 1)
    assert store.use().num_blocks == 2


def test_stores_that_workers_cannot_use_are_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, text in (
        (str(tmp_path / "missing"), "no such directory"),
        ("ftp://host", "is unknown; it may be"),
        ("redis://127.0.0.1:1", "127.0.0.1:1"),
        ("nixl-posix://" + str(tmp_path) + "?nothing=1", "nothing is no parameter of NIXL's POSIX plugin"),
    ):
        finding = check_kv_store(place)
        assert (finding.check, finding.level) == ("kv-store-unusable", Level.FAILURE)
        assert text in finding.found
    monkeypatch.setattr(DirectoryStore, "read", lambda *_: False)
    assert "has not returned a block" in check_kv_store(str(tmp_path)).found


def test_a_full_disk_is_a_warning(tmp_path: Path, free: Callable[[int], None]) -> None:
    free(1 << 20)
    finding = check_kv_store(str(tmp_path))
    assert (finding.level, finding.remedy) == (
        Level.WARNING,
        "free some space; a store on a full disk is skipped",
    )
