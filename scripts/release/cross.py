"""Wheels for aarch64 that are built on another processor, by the C++ compiler in the package ziglang.

It brings the target's C library, in any version, and links its C++ library statically. The headers are those of the
interpreter that runs here: of `pyconfig.h`, extension modules use what both processors have in common.
"""

import platform
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

PROCESSOR = "aarch64"
GLIBC = "2.28"  # as torch's wheels
DEBIAN_HEADERS = Path("/usr/include")  # which has a pyconfig.h for each processor, in a directory that names it
ELF_MACHINE, AARCH64 = struct.Struct("<4s14xH"), 183


def is_cross_compiler(python: Path) -> bool:
    """Whether an environment's interpreter has ziglang, and the processor here is another."""
    if platform.machine() == PROCESSOR or not python.exists():
        return False
    return subprocess.run([python, "-m", "ziglang", "version"], capture_output=True).returncode == 0


@contextmanager
def cross_environment(compiler: Path, python: str) -> Iterator[dict[str, str]]:
    """Yield the environment in which an interpreter's pip builds wheels for aarch64.

    compiler: interpreter that has ziglang. python: interpreter that the wheel is for.
    """
    asked = "import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_config_var('MULTIARCH'))"
    tag, here = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
    command = f"{compiler} -m ziglang c++ -target {PROCESSOR}-linux-gnu.{GLIBC}"
    with TemporaryDirectory(prefix="baton-cross-") as directory:
        include = Path(directory)
        (include / f"{PROCESSOR}-linux-gnu").symlink_to(DEBIAN_HEADERS / here)
        yield {
            "_PYTHON_HOST_PLATFORM": f"linux-{PROCESSOR}",  # which tags the wheel
            "SETUPTOOLS_EXT_SUFFIX": f".{tag}-{PROCESSOR}-linux-gnu.so",
            "CC": command,
            "CXX": command,
            "CPPFLAGS": f"-I{include}",
            "LDSHARED": f"{command} -shared -s",
            "LDCXXSHARED": f"{command} -shared -s",
        }


def foreign_modules(wheel: Path) -> list[str]:
    """Return the compiled modules of a wheel that are for another processor than aarch64."""
    with ZipFile(wheel) as files:
        headers = {name: files.open(name).read(ELF_MACHINE.size) for name in files.namelist() if name.endswith(".so")}
    return [name for name, header in headers.items() if ELF_MACHINE.unpack(header) != (b"\x7fELF", AARCH64)]
