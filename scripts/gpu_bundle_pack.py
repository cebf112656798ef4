"""Packer of wheels and compiled kernels into a minimal bundle for a GPU machine without network access.

    python scripts/gpu_bundle_pack.py WHEELS KERNELS SITE ARCHIVE [--max-mib 60]

WHEELS: a folder of wheels. KERNELS: what `scripts/gpu_kernels.py` compiled. SITE: a folder that is made anew, as it is
to stand on Python's path; ARCHIVE: the same as .tar.xz. Of FlashInfer the headers stay away, of NIXL what UCX with CUDA
does not load.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

LEFT_OUT = (
    "flashinfer/data/cccl/*",
    "flashinfer/data/csrc/*/*",  # in the folder itself are templates that are read before a compiled kernel is loaded
    "flashinfer/data/cutlass/*",
    "flashinfer/data/include/*",
    "flashinfer/data/spdlog/*",
    "b12x/*",
    "build_backend.py",
    "build_utils.py",
    "*/__pycache__/*",
    "*.scripts/*",
    "*.data/*",
    "*.la",
    "nixl_ep_*",
)
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
# Of NIXL's libraries: those from which all others that are loaded follow. The rest are other backends.
NIXL_LIBRARIES = ".nixl_cu*.mesonpy.libs", "nixl_cu*.libs"
NIXL_ROOTS = (
    "nixl_cu[0-9][0-9]/*.so",
    ".nixl_cu*.mesonpy.libs/plugins/libplugin_UCX.so",
    "nixl_cu*.libs/nixl/libplugin_UCX.so",
    "nixl_cu*.libs/ucx/libuc[mt]_cuda.so*",
    "nixl_cu*.libs/ucx/libuct_cma.so*",
)
MIB = 1 << 20


def unpack(wheel: Path, site: Path) -> None:
    """Unpack the needed files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
                archive.extract(name, site)


def needed_by(library: Path) -> list[str]:
    """Return the names of the shared libraries that the loader needs."""
    output = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    return NEEDED.findall(output)


def trim_nixl(site: Path) -> None:
    """Remove libraries that no root library needs."""
    there = {path for pattern in NIXL_LIBRARIES for folder in site.glob(pattern) for path in files_in(folder)}
    by_name: dict[str, list[Path]] = {}
    for path in there:
        by_name.setdefault(path.name, []).append(path)
    left = [path for pattern in NIXL_ROOTS for path in site.glob(pattern)]
    kept: set[Path] = set()
    while left:
        library = left.pop()
        if library not in kept:
            kept.add(library)
            left += [path for name in needed_by(library) for path in by_name.get(name, [])]
    for path in there - kept:
        path.unlink()


def strip_extensions(site: Path) -> None:
    """Remove the debug symbols of Python's extension modules."""
    for path in site.rglob("*.cpython-*.so"):
        subprocess.run(["strip", "--strip-debug", str(path)], check=True)


def files_in(folder: Path) -> Iterator[Path]:
    """Yield all files, recursively."""
    return (path for path in folder.rglob("*") if path.is_file())


def add_kernels(kernels: Path, site: Path) -> int:
    """Copy compiled kernels to FlashInfer's search path, and return their number."""
    target = site / "flashinfer" / "data" / "aot"
    libraries = sorted(kernels.glob("*/*.so"))
    for library in libraries:
        (target / library.parent.name).mkdir(parents=True)
        shutil.copyfile(library, target / library.parent.name / library.name)
    return len(libraries)


def sizes(site: Path) -> str:
    """Return the largest entries, one line each."""
    found = [(sum(path.stat().st_size for path in [entry, *files_in(entry)] if path.is_file()), entry.name)
             for entry in site.iterdir()]  # fmt: skip
    return "\n".join(f"{size / MIB:8.1f} MiB  {name}" for size, name in sorted(found, reverse=True)[:15])


def main() -> None:
    """Pack the bundle and print its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("wheels", "kernels", "site", "archive"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--max-mib", type=float, default=60)
    arguments = parser.parse_args()
    site, archive = arguments.site, arguments.archive
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    for wheel in sorted(arguments.wheels.glob("*.whl")):
        unpack(wheel, site)
    trim_nixl(site)
    strip_extensions(site)
    num_kernels = add_kernels(arguments.kernels, site)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=6) as packed:
        for entry in sorted(site.iterdir()):
            packed.add(entry, entry.name)
    mib = archive.stat().st_size / MIB
    print(f"{archive}: {mib:.1f} MiB, with {num_kernels} compiled kernels; unpacked:\n{sizes(site)}")
    if mib > arguments.max_mib:
        archive.unlink()
        sys.exit(f"{archive} is {mib:.1f} MiB and may have {arguments.max_mib:.0f}: leave kernels or wheels out")


if __name__ == "__main__":
    main()
