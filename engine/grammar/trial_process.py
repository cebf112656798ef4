"""The process that tries grammars: `python -m baton.engine.grammar.trial_process DIRECTORY VOCAB_SIZE EOS_IDS`.

It reads grammars from its standard input and writes the problem of each, or null, to its standard output. Each is
compiled, and some masks of an output are filled. A mask that takes over MAX_FILL_S ends the process.
"""

import contextlib
import json
import os
import resource
import select
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import BinaryIO, Protocol

import numpy as np
import torch

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.base import Matcher
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.mask_fill import MAX_FILL_S, SlowMask
from baton.engine.grammar.trial import HEADER_BYTES
from baton.engine.grammar.xgrammar_backend import XGrammarBackend

IDLE_S = 120.0
MEMORY_BYTES = 2 << 30  # address space of a compile
NICENESS = 5  # steps of the model come first
MAX_WALK_TOKENS = 48
MAX_WALK_S = 4.0  # CPU time
NUM_REPEATS = 3  # of each token, if the grammar allows them: ambiguous grammars take longest for repeated text
CHECK_S = 0.1


def main() -> None:
    """Serve until standard input is closed, or until no grammar arrives for IDLE_S."""
    directory, vocab_size, eos = sys.argv[1:]
    eos_token_ids = frozenset(map(int, eos.split(",")))
    try:
        backend = XGrammarBackend(directory, int(vocab_size), eos_token_ids)
    except InvalidRequest as error:  # the worker's own backend has found the same
        sys.exit(str(error))
    row = torch.zeros(-(-int(vocab_size) // 32), dtype=torch.int32)
    _limit()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    source, target = sys.stdin.buffer, Answers(sys.stdout.buffer)
    target.write(None)
    while select.select([source], [], [], IDLE_S)[0]:
        header = source.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return
        message = json.loads(source.read(int.from_bytes(header, "big")))
        grammar = Grammar(GrammarKind(message["kind"]), message["source"], message["is_open"])
        target.write(_problem(backend, grammar, eos_token_ids, row, target))


class Watch(Protocol):
    """Ends a trial that takes too long for one token."""

    def restart_clock(self) -> None:
        """Watch the next token, or the next mask."""
        ...


class Answers:
    """Writes the problems. While a walk is watched, a token that takes over MAX_FILL_S is the problem."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._lock = threading.Lock()  # held to write, and to restart the clock
        self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self._started_s: float | None = None  # None: not watched
        threading.Thread(target=self._watch, daemon=True).start()

    def write(self, problem: str | None) -> None:
        """Write a problem, which ends the watch."""
        with self._lock:
            self._started_s = None
            self._write(problem)

    def restart_clock(self) -> None:
        """Watch the next token, or the next mask."""
        with self._lock:
            self._started_s = time.clock_gettime(self._clock_id)

    def _watch(self) -> None:
        while True:
            time.sleep(CHECK_S)
            with self._lock:
                if self._started_s is None:
                    continue
                duration_s = time.clock_gettime(self._clock_id) - self._started_s
                if duration_s > MAX_FILL_S:
                    self._write(str(SlowMask(duration_s)))
                    os._exit(0)

    def _write(self, problem: str | None) -> None:
        body = json.dumps({"problem": problem}).encode()
        self._target.write(len(body).to_bytes(HEADER_BYTES, "big") + body)
        self._target.flush()


def _problem(
    backend: XGrammarBackend, grammar: Grammar, eos_token_ids: frozenset[int], row: torch.Tensor, watch: Answers
) -> str | None:
    try:
        matcher = backend.compile(grammar).matcher(eos_token_ids)
        walk(matcher, eos_token_ids, row, watch)
    except (InvalidRequest, RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            return f"it takes over {MEMORY_BYTES >> 30} GiB of memory to compile; simplify it"
        return str(error)
    return None


def walk(matcher: Matcher, eos_token_ids: frozenset[int], row: torch.Tensor, watch: Watch) -> None:
    """Fill masks along an output of tokens that are drawn and then repeated; always the same for a grammar."""
    draw, token_id, end_s = Random(0), -1, time.thread_time() + MAX_WALK_S
    for number in range(MAX_WALK_TOKENS):
        watch.restart_clock()
        matcher.fill(row)
        allowed = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")
        allowed[list(eos_token_ids)] = 0
        if not (number % (NUM_REPEATS + 1) and allowed[token_id]):
            [token_ids] = allowed.nonzero()
            if not len(token_ids):
                return
            token_id = int(draw.choice(token_ids))
        watch.restart_clock()
        if not matcher.accept(token_id) or time.thread_time() > end_s:
            return


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
