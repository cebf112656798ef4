"""LoRA adapters of offline inference."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from baton.offline.errors import RequestFailed
from baton.offline.requests import Request, Requests

LOAD_PATH, UNLOAD_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter that serves a request. It is loaded from `lora_path` when a call first uses its name."""

    lora_name: str
    lora_int_id: int  # ignored: adapters are known by name
    lora_path: str


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """The paths of the adapters that an LLM has loaded, by name."""

    paths: dict[str, str] = field(default_factory=dict)

    def missing(self, wanted: Iterable[LoRARequest | None]) -> dict[str, str]:
        """Return the paths of wanted adapters that are not loaded. Raises ValueError for two paths of one name."""
        missing: dict[str, str] = {}
        for each in filter(None, wanted):
            name, path = each.lora_name, str(Path(each.lora_path).expanduser().absolute())
            known = self.paths.get(name, missing.get(name, path))
            if known != path:
                raise ValueError(f"lora_request: {name} is the adapter in {known}; give the one in {path} another name")
            if name not in self.paths:
                missing[name] = path
        return missing

    def add(self, name: str, path: str) -> None:
        """Note an adapter that was loaded."""
        self.paths[name] = path


async def load(requests: Requests, name: str, path: str) -> None:
    """Load an adapter. Raises ValueError if it cannot be loaded.

    An interrupted call, or an attempt that the router's loss ended, may have left an adapter with this name. It is
    unloaded first: its path may be another one.
    """
    wanted = Request(LOAD_PATH, {"lora_name": name, "lora_path": path})
    try:
        await requests.post(wanted)
    except RequestFailed:
        with suppress(RequestFailed):  # there is none with this name
            await requests.post(Request(UNLOAD_PATH, {"lora_name": name}))
        try:
            await requests.post(wanted)
        except RequestFailed as error:
            raise ValueError(f"lora_request: the adapter {name} of {path} cannot be loaded: {error.reason}") from None
