"""Boosts of pages in the site's search: what a reader with a problem or a task looks for comes first."""

BOOSTS = {
    "troubleshooting.md": 2.0,
    "faq.md": 1.5,
    "how_to/": 1.5,
    "tutorials/": 1.2,
    "decisions/": 0.2,
    "repository/": 0.2,
}  # by the beginning of the page's path in docs/


def boost(path: str) -> float:
    """Return the factor of a page's score."""
    return next((factor for prefix, factor in BOOSTS.items() if path.startswith(prefix)), 1.0)
