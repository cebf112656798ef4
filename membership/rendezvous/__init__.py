"""Groups of workers that step together: who is in them, and how they hear of each other; without torch."""
