"""Batches: requests in a file, run behind all others, with their responses in another file."""
