"""Simulated workers behind the worker protocol of each router."""
