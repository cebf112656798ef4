"""Index of the blocks in every worker's prefix cache."""
