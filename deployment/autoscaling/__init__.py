"""How large both pools should be: pure functions. No clock, no I/O; a snapshot goes in, targets come out."""
