"""What of the engine runs on a GPU, held against the same on a CPU or in plain torch, and how fast it is there."""
