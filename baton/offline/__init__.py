"""Offline inference: `LLM`, which generates from lists of prompts in a Python program."""
