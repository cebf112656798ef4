"""The compiled code as separate programs."""
