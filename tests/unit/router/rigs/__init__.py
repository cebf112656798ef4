"""What tests of the router start."""
