"""Requests that move from one worker to another, or end early."""
