"""Matrices of small integers with scales per group of columns, and the layouts in which checkpoints store them."""
