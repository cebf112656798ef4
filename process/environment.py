"""Environment variables that libraries read when they are imported."""

import os

# gRPC's older event loop polls in the thread that waits for events. The newer one hands each event on through two more
# threads, which costs our small messages half as much CPU and latency again, on both sides.
GRPC_EXPERIMENTS = "-event_engine_client,-event_engine_listener,-event_engine_callback_cq"
# Threads of torch's operators spin for 0.4 ms while they wait for more work. GCC's OpenMP default is 6 ms, in which
# they take cores from the threads of compiled code.
OPENMP_SPINS = {"GOMP_SPINCOUNT": "20000"}


def prepare_environment() -> None:
    """Set what gRPC and torch read at their import, and what child processes inherit. Variables that are set stay."""
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in OPENMP_SPINS.items():
            os.environ.setdefault(name, value)
