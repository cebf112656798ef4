"""Options and config files: what every process is configured with, and how values are read and checked."""
