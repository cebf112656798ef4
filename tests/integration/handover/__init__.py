"""KV that workers hand over, in all its forms."""
