"""Baton as an application on Ray Serve."""
