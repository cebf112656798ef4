"""Accuracy and memory of every quantization of weights and of KV."""
