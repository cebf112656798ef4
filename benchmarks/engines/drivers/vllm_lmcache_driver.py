"""vLLM's CPU backend with LMCache as the store: in host memory, or in files behind a small part of host memory."""

import os

from driver import Setting, serve
from vllm.config import KVTransferConfig
from vllm_driver import VllmEngine

CHUNK_TOKENS = 256  # LMCache's default
GB = 1 << 30  # as LMCache counts


def load(setting: Setting) -> VllmEngine:
    """Configure LMCache, whose settings are environment variables, and load the engine."""
    size = str(setting.kv_store_bytes / GB)
    variables = {"LMCACHE_CHUNK_SIZE": str(CHUNK_TOKENS), "LMCACHE_MAX_LOCAL_CPU_SIZE": size}
    if setting.kv_store == "disk":
        directory = f"file://{setting.kv_store_directory}/"
        variables |= {
            "LMCACHE_LOCAL_CPU": "False",
            "LMCACHE_LOCAL_DISK": directory,
            "LMCACHE_MAX_LOCAL_DISK_SIZE": size,
        }
    else:
        variables["LMCACHE_LOCAL_CPU"] = "True"
    os.environ.update(variables)
    connector = KVTransferConfig(kv_connector="LMCacheConnectorV1", kv_role="kv_both")
    return VllmEngine(setting, {"kv_transfer_config": connector})


if __name__ == "__main__":
    serve(load)
