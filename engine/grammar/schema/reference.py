"""Where the references of a schema point."""


def target_of(reference: str, root: object) -> object:
    """Return the schema to which a reference points; true if there is none, which the compiler reports."""
    current = root
    for name in reference.split("/")[1:]:
        if isinstance(current, dict) and name in current:
            current = current[name]
        elif isinstance(current, list) and name.isdecimal() and float(name) < len(current):
            current = current[int(name)]
        else:
            return True
    return current
