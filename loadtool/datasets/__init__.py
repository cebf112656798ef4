"""Datasets: sources of requests."""
