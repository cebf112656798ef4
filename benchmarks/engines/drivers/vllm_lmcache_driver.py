"""vLLM's CPU backend with LMCache as the store, in host memory.

LMCache's connector within the engine's process has no copies for CPUs (`CreateGPUConnector` raises an error), so this
is its other one, `LMCacheMPConnector`: a server process keeps the KV.
"""

import socket

from driver import Setting, serve
from llvmlite.binding import ffi
from vllm.config import KVTransferConfig
from vllm_driver import VllmEngine

MODULE = "lmcache.integration.vllm.lmcache_mp_connector"
CHUNK_TOKENS = 256  # LMCache's default


def load(setting: Setting) -> VllmEngine:
    """Load the engine, whose connector starts the server."""
    port, http_port = free_ports()
    arguments = {
        "chunk-size": CHUNK_TOKENS,
        "l1-size-gb": setting.kv_store_bytes / (1 << 30),
        "eviction-policy": "LRU",
        "http-port": http_port,
    }
    extra = {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": port,
        "lmcache.mp.autostart": True,
        "lmcache.mp.autostart.server_args": " ".join(f"--{name} {value}" for name, value in arguments.items()),
    }
    connector = KVTransferConfig(
        kv_connector="LMCacheMPConnector",
        kv_connector_module_path=MODULE,
        kv_role="kv_both",
        kv_connector_extra_config=extra,
    )
    hide_dict_of_llvmlite()
    return VllmEngine(setting, {"kv_transfer_config": connector})


def hide_dict_of_llvmlite() -> None:
    """Have llvmlite's library, which LMCache loads, wrap no `__dict__` as a C function.

    vLLM 0.32 reads the `__dict__` of the objects in all modules when it starts, and fails on that one.
    """
    library = type(ffi.lib)
    wrap = library.__getattr__

    def function(self: object, name: str) -> object:
        if name == "__dict__":
            raise AttributeError(name)
        return wrap(self, name)

    library.__getattr__ = function


def free_ports() -> list[int]:
    """Return two free ports."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return [each.getsockname()[1] for each in (first, second)]


if __name__ == "__main__":
    serve(load)
