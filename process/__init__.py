"""The life of a process: entry, children, lifeline, progress, logs and shutdown."""
