"""The index of every worker's prefix cache."""
