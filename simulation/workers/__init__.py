"""Simulated workers behind the real gRPC services."""
