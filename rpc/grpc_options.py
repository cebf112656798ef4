"""Options of the gRPC channels and servers between Baton's processes; without torch, so that a router has them too."""

MAX_REQUEST_BYTES = 64 << 20  # of what a server takes; what a process is sent by a worker it called has no bound
MAX_MESSAGE_BYTES = 1 << 20  # of a message of a stream, beyond which the rest goes into the next one

# A peer that is stopped (not dead) or whose host is gone is found out after 15 s: its calls end.
_KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the one of the two that ends the calls; its default is 60 s
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # despite its name, how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel really connects anew, without an earlier one's backoff
)

# Between processes of one machine over a Unix socket, which closes when one of them ends: no keepalive, so that one
# that is only stopped for a while is not given up.
LOCAL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
)
