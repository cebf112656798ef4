"""The prefill worker: computes prompts for decode workers."""
