"""`baton rendezvous`: the same process as `python -m baton.membership.rendezvous`."""

from baton.membership.rendezvous.__main__ import main

command = main
