"""API keys: who may send requests, and within which limits."""
