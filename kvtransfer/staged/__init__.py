"""KV transfer from GPU to GPU through host memory."""
