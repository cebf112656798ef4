"""Benchmarks; their own workers and clients use gRPC as Baton's processes do."""

from baton.process.environment import prepare_environment

prepare_environment()
