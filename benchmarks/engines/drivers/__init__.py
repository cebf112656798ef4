"""What runs in an engine's own environment: scripts, each with `driver` beside it and nothing else of ours."""
