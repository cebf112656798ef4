"""The `/v1/embeddings` route."""
