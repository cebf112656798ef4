"""FP8 (e4m3) tokens: activations that are quantised at run time by their largest elements."""
