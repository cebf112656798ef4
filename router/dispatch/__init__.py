"""Dispatch of requests to workers: attempts, retries and their budget."""
