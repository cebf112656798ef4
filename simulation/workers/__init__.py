"""Simulated workers: the real gRPC services on simulated engines."""
