run_on_threads: object
"""Capsule that gives other compiled modules access to these threads."""
