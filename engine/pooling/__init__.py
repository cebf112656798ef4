"""Embeddings: how the final hidden states of a prompt become one vector."""
