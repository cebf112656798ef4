"""The process that tries grammars: `python -m baton.engine.grammar.trial_process DIRECTORY VOCAB_SIZE EOS_IDS`.

It reads grammars from its standard input and writes the problem of each, or null, to its standard output.
"""

import contextlib
import json
import os
import resource
import select
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import torch

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.trial import HEADER_BYTES
from baton.engine.grammar.xgrammar_backend import XGrammarBackend

IDLE_S = 120.0
MEMORY_BYTES = 2 << 30  # address space of a compile
NICENESS = 5  # steps of the model come first


def main() -> None:
    """Serve until standard input is closed, or until no grammar arrives for IDLE_S."""
    directory, vocab_size, eos = sys.argv[1:]
    eos_token_ids = frozenset(map(int, eos.split(",")))
    backend = XGrammarBackend(directory, int(vocab_size), eos_token_ids)
    row = torch.zeros(-(-int(vocab_size) // 32), dtype=torch.int32)
    _limit()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _write(target, None)
    while select.select([source], [], [], IDLE_S)[0]:
        header = source.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return
        message = json.loads(source.read(int.from_bytes(header, "big")))
        grammar = Grammar(GrammarKind(message["kind"]), message["source"], message["is_open"])
        _write(target, _problem(backend, grammar, eos_token_ids, row))


def _problem(
    backend: XGrammarBackend, grammar: Grammar, eos_token_ids: frozenset[int], row: torch.Tensor
) -> str | None:
    try:
        backend.compile(grammar).matcher(eos_token_ids).fill(row)
    except (InvalidRequest, RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            return f"it takes over {MEMORY_BYTES >> 30} GiB of memory to compile; simplify it"
        return str(error)
    return None


def _write(target: BinaryIO, problem: str | None) -> None:
    body = json.dumps({"problem": problem}).encode()
    target.write(len(body).to_bytes(HEADER_BYTES, "big") + body)
    target.flush()


def _limit() -> None:
    """Limit the memory, and let the kernel end this process first if memory runs out."""
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # not in every container
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(NICENESS)


def _end_with_parent() -> None:
    """End this process as soon as its standard input is closed, also while it compiles."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
