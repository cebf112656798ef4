"""`baton rendezvous`: one rendezvous in this process, as `python -m baton.membership.rendezvous` runs it."""

from baton.membership.rendezvous.__main__ import main

command = main
