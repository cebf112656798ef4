"""All checks of one machine that need nothing but a look at it."""

from collections.abc import Sequence

from baton.doctor.compiled import ENGINE_MODULES, check_compiled
from baton.doctor.finding import Finding
from baton.doctor.gpus import check_gpus
from baton.doctor.memory import check_huge_pages, check_shared_memory, shared_memory_space
from baton.doctor.packages import check_extras, check_packages
from baton.doctor.process_limits import check_file_limit, check_pinned_memory, process_limits
from baton.doctor.processor import check_processor, this_processor
from baton.doctor.rdma import check_rdma, rdma_ports


def examine_machine(pool_bytes: int | None = None, modules: Sequence[str] = ENGINE_MODULES) -> list[Finding]:
    """What this process finds where it runs; takes a fraction of a second, in any thread.

    `pool_bytes`: of the KV pool that the process has or will have. `modules`: compiled ones that it uses.
    """
    limits = process_limits()
    ports = rdma_ports()
    return [
        *check_packages(),
        *check_extras(),
        check_compiled(modules),
        check_processor(this_processor()),
        check_shared_memory(shared_memory_space()),
        check_huge_pages(),
        check_pinned_memory(limits, pool_bytes, has_rdma=bool(ports)),
        check_file_limit(limits),
        check_gpus(),
        *check_rdma(ports),
    ]
