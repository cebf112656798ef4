"""Layers with recurrent state: the gated delta net, and Mamba-2."""
