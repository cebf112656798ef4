"""Weights offload: weights of layers that stay on a disk or in host memory until a step needs them."""
