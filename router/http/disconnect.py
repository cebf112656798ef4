"""A client that goes away ends the work for it."""


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""
