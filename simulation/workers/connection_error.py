"""A call to a peer that failed, as the fills that wait for it know it."""

import grpc


def connection_error(error: grpc.aio.AioRpcError) -> ConnectionError:
    """In one line, without the call's history."""
    return ConnectionError(f"{error.code().name}: {error.details()}")
