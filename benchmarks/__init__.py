"""Benchmarks. Their workers and clients use gRPC like Baton's processes."""

from baton.process.environment import prepare_environment

prepare_environment()
