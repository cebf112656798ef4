"""Training of draft heads: the network, its training, and its files."""
