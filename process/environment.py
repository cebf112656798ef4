"""Environment variables that libraries read when they are imported."""

import os

# gRPC's older event loop polls in the thread that waits for events. The newer one passes each event through two more
# threads, which costs small messages 1.5 times the CPU and latency, on both sides.
GRPC_EXPERIMENTS = "-event_engine_client,-event_engine_listener,-event_engine_callback_cq"
# Threads of torch's operators spin for 0.4 ms while they wait for work. GCC's OpenMP default is 6 ms, which takes
# cores from the threads of compiled code.
OPENMP_SPINS = {"GOMP_SPINCOUNT": "20000"}


def prepare_environment() -> None:
    """Set the variables that gRPC and torch read at import and child processes inherit. Existing values are kept."""
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in OPENMP_SPINS.items():
            os.environ.setdefault(name, value)
