"""GGUF files: their tensors, and the config, tokenizer and chat template in their metadata."""
