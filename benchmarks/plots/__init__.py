"""Plots of `benchmarks/results/`, as SVG files that are readable on light and dark pages."""
