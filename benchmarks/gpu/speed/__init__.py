"""Speeds of a device, compared with its limits and with other engines."""
