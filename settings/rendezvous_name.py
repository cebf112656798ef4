"""What a worker's option says of where its rendezvous is."""

from baton.settings.names import NAME_RULE, is_name
from baton.settings.values import OptionError

REGISTRY = "registry"  # in place of an address
DEFAULT_NAME = "default"


def registered_name(rendezvous: str | None) -> str | None:
    """The name in the registry that `registry`, `registry/NAME` or nothing stands for; None for an address.

    Raises OptionError for what cannot be a name.
    """
    if rendezvous is None:
        return DEFAULT_NAME
    word, slash, name = rendezvous.partition("/")
    if word != REGISTRY:
        return None
    if not slash:
        return DEFAULT_NAME
    if not is_name(name):
        raise OptionError(f"rendezvous: the name after `{REGISTRY}/` must be {NAME_RULE}")
    return name
