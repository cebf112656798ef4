run_on_threads: object
"""A capsule: how other compiled modules come to these threads."""
