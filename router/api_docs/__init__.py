"""The description of the API as a page, with its scripts."""
