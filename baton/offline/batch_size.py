"""How many completions an LLM keeps in flight."""

import resource

SEQS = 256  # of a worker's batch if its size is not given: that on a GPU
BATCHES = 2  # for each decode worker: one is generated while the next one's prompts are computed
MAX_IN_FLIGHT = 2048  # that the router's queue has room for
FILES_SHARE = 0.5  # of the process's open files: each request in flight has a connection


def max_in_flight(num_decode: int, max_num_seqs: int | None) -> int:
    """Return the maximum completions in flight for these decode workers."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = BATCHES * num_decode * (SEQS if max_num_seqs is None else max_num_seqs)
    most = MAX_IN_FLIGHT if num_files == resource.RLIM_INFINITY else min(MAX_IN_FLIGHT, int(FILES_SHARE * num_files))
    return max(1, min(wanted, most))
