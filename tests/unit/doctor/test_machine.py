"""Checks of a machine."""

import resource
from pathlib import Path

import pytest
import torch

from baton.doctor.finding import Level, Unfit, failure, ok, require_fit, warning
from baton.doctor.machine import (
    Processor,
    check_compiled,
    check_gpus,
    check_processor,
    examine_machine,
    this_processor,
)
from baton.doctor.system_limits import (
    CAP_IPC_LOCK,
    FileSystemSpace,
    ProcessLimits,
    check_file_limit,
    check_huge_pages,
    check_pinned_memory,
    check_shared_memory,
    process_limits,
    shared_memory_space,
)


def test_each_check_of_this_machine_runs_once() -> None:
    findings = examine_machine(pool_bytes=1 << 20)
    names = [finding.check for finding in findings]
    expected = {"processor", "shared-memory-size", "memlock", "file-limit", "compiled-modules", "huge-pages"}
    assert expected <= set(names)
    assert all(finding.remedy for finding in findings if finding.level is not Level.OK)
    assert not any(finding.remedy for finding in findings if finding.level is Level.OK)


@pytest.mark.parametrize(
    ("space", "level"),
    [
        (None, Level.FAILURE),
        (FileSystemSpace(64 << 20, 64 << 20), Level.WARNING),  # a container's default
        (FileSystemSpace(8 << 30, 100 << 20), Level.WARNING),
        (FileSystemSpace(8 << 30, 4 << 30), Level.OK),
    ],
)
def test_free_shared_memory_is_checked(space: FileSystemSpace | None, level: Level) -> None:
    finding = check_shared_memory(space)
    assert (finding.check, finding.level) == ("shared-memory-size", level)


def test_missing_shared_memory_is_zero(tmp_path: Path) -> None:
    assert shared_memory_space(tmp_path / "absent") is None
    assert shared_memory_space(tmp_path) is not None


def test_huge_pages_are_read(tmp_path: Path) -> None:
    setting, meminfo = tmp_path / "shmem_enabled", tmp_path / "meminfo"
    setting.write_text("always within_size [advise] never deny force\n")
    meminfo.write_text("MemTotal: 1 kB\nHugePages_Total:      12\n")
    assert check_huge_pages(setting, meminfo).found == "transparent ones for pools: advise; reserved: 12"
    assert "unknown" in check_huge_pages(tmp_path / "absent", tmp_path / "absent").found


@pytest.mark.parametrize(
    ("limit", "level"), [(64, Level.FAILURE), (1024, Level.WARNING), (65536, Level.OK), (None, Level.OK)]
)
def test_the_limit_of_open_files_is_checked(limit: int | None, level: Level) -> None:
    finding = check_file_limit(ProcessLimits(limit, None))
    assert (finding.check, finding.level) == ("file-limit", level)


@pytest.mark.parametrize(
    ("limit", "pool_bytes", "has_rdma", "level"),
    [
        (None, 1 << 30, True, Level.OK),
        (8 << 20, 1 << 30, False, Level.OK),
        (8 << 20, None, True, Level.WARNING),
        (8 << 20, 1 << 30, True, Level.FAILURE),
        (2 << 30, 1 << 30, True, Level.OK),
    ],
)
def test_the_limit_of_pinned_memory_is_checked(
    limit: int | None, pool_bytes: int | None, has_rdma: bool, level: Level
) -> None:
    finding = check_pinned_memory(ProcessLimits(1024, limit), pool_bytes, has_rdma)
    assert (finding.check, finding.level) == ("memlock", level)


def test_the_limits_are_the_processs_own(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nCapEff:\t{0:016x}\n")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert process_limits(status).pinned_bytes == (None if soft == resource.RLIM_INFINITY else soft)
    assert process_limits(status).open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    status.write_text(f"CapEff:\t{1 << CAP_IPC_LOCK:016x}\n")
    assert process_limits(status).pinned_bytes is None


def test_vector_instructions_are_checked(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\n")
    processor = this_processor(cpuinfo)
    assert (processor.name, processor.flags) == ("Some CPU", {"fpu", "avx2", "avx512_bf16"})
    assert check_processor(processor).level is Level.OK
    old = check_processor(Processor("Old CPU", 1, frozenset({"fpu", "sse2"})))
    assert (old.level, "AVX2" in (old.remedy or "")) == (Level.WARNING, True)
    unknown = check_processor(this_processor(tmp_path / "absent"))
    assert unknown.level is Level.OK  # without flags there is no warning


def test_modules_that_were_not_compiled_are_named() -> None:
    assert check_compiled(("json.decoder",)).level is Level.OK
    finding = check_compiled(("json.decoder", "baton.engine.native.nowhere"))
    assert finding.level is Level.WARNING
    assert finding.found.startswith("baton.engine.native.nowhere cannot be loaded")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU here")
def test_a_gpu_that_torch_does_not_see_is_a_warning(tmp_path: Path) -> None:
    assert check_gpus(tmp_path).found.startswith("none")
    (tmp_path / "version").write_text("NVRM version")
    gpu = tmp_path / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   1\n")
    finding = check_gpus(tmp_path)
    assert (finding.check, "(NVIDIA H200)" in finding.found) == ("gpu-unused", True)


def test_a_strict_start_refuses_warnings() -> None:
    require_fit([ok("a", "well")])
    with pytest.raises(Unfit, match=r"b: low \(raise it\); c: gone \(bring it\)"):
        require_fit([ok("a", "well"), warning("b", "low", "raise it"), failure("c", "gone", "bring it")])
