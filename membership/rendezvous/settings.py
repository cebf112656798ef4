"""The times and bounds of a rendezvous."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RendezvousSettings:
    """What the groups of one rendezvous keep to."""

    timeout_s: float = 1.0  # a member that is silent for so long is out
    settle_s: float = 0.02  # changes within this time of the first are one
    broken_interval_s: float = 0.05  # between two epochs because of a broken one: else they could come in a storm
    return_s: float = 1.0  # how long members that others know of are waited for, when the rendezvous was away
    forget_s: float = 600.0  # a group without members is forgotten after this
    max_groups: int = 1024
    max_members: int = 1024  # of one group
