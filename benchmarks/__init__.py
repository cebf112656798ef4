"""Benchmarks; their own workers and clients speak gRPC as Baton's processes do."""

import baton.rpc  # noqa: F401  # before any of them imports gRPC
