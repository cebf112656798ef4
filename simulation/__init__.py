"""Simulation of workers and of whole deployments."""
