"""Options of the gRPC channels and servers between Baton's processes; imports no torch, since routers need them."""

MAX_REQUEST_BYTES = 64 << 20  # of a message that a server receives; responses from workers are unlimited
MAX_MESSAGE_BYTES = 1 << 20  # of a message of a stream; the rest goes into the next message

# Calls to a peer that is suspended (not dead) or whose host is lost end after 15 s.
_KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # of the two timeouts the one that ends calls; default: 60 s
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # despite its name the timeout of one connection attempt
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel connects anew, without an earlier channel's backoff
)

# Between processes of one machine over a Unix socket, which closes when either ends. No keepalive, so that a process
# that is suspended for a while keeps its calls.
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
