"""`baton rendezvous`: one rendezvous in this process, as `python -m rpc.group` runs it."""

from rpc.group.__main__ import main

command = main
