"""Plots of `benchmarks/results/` as SVG files for light and dark pages."""
