"""Autoscaler of both pools: pure functions from a snapshot to target sizes, without clock or I/O."""
