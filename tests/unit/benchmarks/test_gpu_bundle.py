"""Contents of the bundle for a GPU machine."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_bundle_pack.py"


def write_wheel(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)


def shared_library(path: Path, *needed: Path) -> Path:
    """Return a library with dependencies on other libraries."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-Wl,--no-as-needed"]
    command += [f"-Wl,-soname,{path.name}", *map(str, needed), "-o", str(path)]
    subprocess.run(command, input=b"", check=True)
    return path


def pack(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    folders = [str(tmp_path / name) for name in ("wheels", "kernels", "site", "bundle/site.tar.xz")]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *folders, *options], capture_output=True, text=True, check=False
    )


def test_the_bundle_has_compiled_kernels_and_no_sources(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    kept = {"flashinfer/norm.py": b"", "flashinfer/data/csrc/decode.jinja": b"", "flashinfer-1.dist-info/METADATA": b""}
    left_out = {"flashinfer/data/csrc/sm120/a.cu": b"", "flashinfer/data/cutlass/a.h": b"", "b12x/a.py": b""}
    write_wheel(tmp_path / "wheels" / "flashinfer-1-py3-none-any.whl", kept | left_out)
    kernel = tmp_path / "kernels" / "norm" / "norm.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"compiled")
    (kernel.parent / "page.unfinished").write_bytes(b"")
    packed = pack(tmp_path)
    assert packed.returncode == 0, packed.stderr
    assert "with 1 compiled kernels" in packed.stdout
    with tarfile.open(tmp_path / "bundle" / "site.tar.xz") as archive:
        files = {member.name for member in archive.getmembers() if member.isfile()}
    assert files == {*kept, "flashinfer/data/aot/norm/norm.so"}


def test_the_parts_of_nixl_that_ucx_needs_are_kept(tmp_path: Path) -> None:
    libraries = tmp_path / "build" / "nixl_cu13.libs"
    common = shared_library(libraries / "libcommon-1.so")
    core = shared_library(libraries / "libcore-1.so", common)
    plugin = shared_library(libraries / "nixl" / "libplugin_UCX.so", core)
    shared_library(libraries / "ucx" / "libuct_cuda.so.0.0.0")
    storage = shared_library(libraries / "libstorage-1.so")
    shared_library(libraries / "nixl" / "libplugin_OBJ.so", storage)
    binding = shared_library(tmp_path / "build" / "nixl_cu13" / "_bindings.so", core)
    (tmp_path / "wheels").mkdir()
    paths = [path for path in (tmp_path / "build").rglob("*") if path.is_file()]
    files = {str(path.relative_to(tmp_path / "build")): path.read_bytes() for path in paths}
    write_wheel(tmp_path / "wheels" / "nixl_cu13-1-cp312.whl", files)
    assert pack(tmp_path).returncode == 0
    site = tmp_path / "site"
    left = {path.name for path in site.rglob("*") if path.is_file()}
    assert left == {common.name, core.name, plugin.name, binding.name, "libuct_cuda.so.0.0.0"}


def test_a_bundle_that_is_too_large_is_refused_with_the_sizes(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    write_wheel(tmp_path / "wheels" / "large-1-py3-none-any.whl", {"large/a": bytes(range(256)) * 4096})
    refused = pack(tmp_path, "--max-mib", "0.0001")
    assert refused.returncode == 1
    assert "may have 0" in refused.stderr
    assert "1.0 MiB  large" in refused.stdout
    assert not (tmp_path / "bundle" / "site.tar.xz").exists()
