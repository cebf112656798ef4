"""The `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` routes, compatible with vLLM."""

from pydantic import Field

from baton.router.adapters.adapter import MAX_PATH_CHARS, NAME_RULE, is_adapter_name
from baton.router.adapters.catalog import NAME, AdapterCatalog
from baton.router.errors import FieldError
from baton.router.http.exchange import Exchange
from baton.router.openai.request_body import RequestBody
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.rpc.status import NotFound

TEXT = {"content-type": "text/plain; charset=utf-8"}
DISABLED = "this server serves no LoRA adapters; start it with --enable-lora"


class LoadAdapterBody(RequestBody):
    """The name and the directory of a LoRA adapter to load."""

    lora_name: str | None = None
    lora_path: str | None = Field(None, max_length=MAX_PATH_CHARS)
    load_inplace: bool = False
    base_model_name: str | None = None  # of the served models; None: the first one


class UnloadAdapterBody(RequestBody):
    """The name of a LoRA adapter to unload."""

    lora_name: str | None = None
    lora_int_id: int | None = None  # ignored, as in vLLM: a number that engines give to adapters


class AdaptersApi:
    """Handler of requests that load and unload adapters."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    async def load(self, body: LoadAdapterBody, exchange: Exchange) -> None:
        """Load an adapter at all workers."""
        exchange.client.check_admin()
        if not body.lora_name or not body.lora_path:
            raise FieldError(NAME, "Both 'lora_name' and 'lora_path' must be provided.")
        if not is_adapter_name(body.lora_name):
            raise FieldError(NAME, f"{NAME} must have {NAME_RULE}")
        if body.load_inplace:
            raise FieldError("load_inplace", "load_inplace is not supported by this server; unload the adapter first")
        models = self._service.models
        if body.lora_name in models.names:
            raise FieldError(NAME, f"{NAME} {body.lora_name} is the name of a served model; choose another")
        await self._catalog(body.base_model_name).load(body.lora_name, body.lora_path)
        text = f"Success: LoRA adapter '{body.lora_name}' added successfully."
        await exchange.respond(200, text.encode(), TEXT)

    async def unload(self, body: UnloadAdapterBody, exchange: Exchange) -> None:
        """Unload an adapter everywhere; running requests end as usual."""
        exchange.client.check_admin()
        name = body.lora_name
        if not name:
            raise FieldError(NAME, "'lora_name' needs to be provided.")
        catalogs = self._service.models.catalogs
        if not catalogs:
            raise NotFound(DISABLED)
        catalog = next((each for each in catalogs if each.get(name) is not None), catalogs[0])
        await catalog.unload(name)
        await exchange.respond(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), TEXT)

    def _catalog(self, base_model_name: str | None) -> AdapterCatalog:
        models = self._service.models
        model: ServedModel = models.named(base_model_name or models.names[0])
        if model.catalog is None:
            raise NotFound(DISABLED)
        return model.catalog
