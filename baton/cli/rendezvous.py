"""`baton rendezvous`: one rendezvous in this process, as `python -m baton.rpc.group` runs it."""

from baton.rpc.group.__main__ import main

command = main
