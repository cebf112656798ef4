"""Pools of workers, on Kubernetes alone and on Ray."""
