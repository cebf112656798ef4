"""Programs that use an `LLM`, run as a user would, and the processes that they leave."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

ENGINE = 'dtype="float32", kv_cache_memory_bytes="32MiB"'
# No `if __name__ == "__main__"`: the workers must not import the program.
BEGINNING = f"""
import os, sys, time
from baton import LLM, SamplingParams
llm = LLM(num_prefill=0, {ENGINE})
print(llm.log_dir, flush=True)
"""


@contextmanager
def program(body: str) -> Iterator[tuple["subprocess.Popen[str]", Path, list[psutil.Process]]]:
    """Run a program, and yield it, the private directory of its LLM, and the LLM's processes, once they serve."""
    argv = [sys.executable, "-c", BEGINNING + body]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        children: list[psutil.Process] = []
        try:
            directory = Path(_line(process.stdout)).parent
            children = [
                each
                for each in psutil.Process(process.pid).children(recursive=True)
                if "baton" in " ".join(each.cmdline())
            ]
            assert len(children) == 3, children  # the parent of the others, the router, the worker
            yield process, directory, children
        finally:
            process.kill()
            for each in children:
                if each.is_running():
                    each.kill()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    line = stream.readline().strip()
    assert line, "the program ended before its LLM served"
    return line
