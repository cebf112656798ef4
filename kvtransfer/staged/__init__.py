"""KV transfer from GPU to GPU, staged through host memory."""
