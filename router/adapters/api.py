"""The `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` routes, compatible with vLLM."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from baton.router.adapters.adapter import MAX_NAME_CHARS, MAX_PATH_CHARS, NAME_PATTERN, NAME_RULE, is_adapter_name
from baton.router.adapters.catalog import NAME, AdapterCatalog
from baton.router.errors import FieldError
from baton.router.http.exchange import Exchange
from baton.router.openai.ignored_fields import Label
from baton.router.openai.request_body import BOOLEAN, WHOLE, RequestBody
from baton.router.service import RouterService
from baton.rpc.status import NotFound

TEXT = {"content-type": "text/plain; charset=utf-8"}
DISABLED = "this server serves no LoRA adapters; start it with --enable-lora"


def _require(body: object, *names: str) -> object:
    """Return the body. Raises vLLM's error unless it has the fields."""
    if isinstance(body, dict) and any(body.get(name) in (None, "") for name in names):
        both = " and ".join(f"'{name}'" for name in names)
        text = f"Both {both} must be provided." if len(names) > 1 else f"{both} must be provided."
        raise PydanticCustomError("missing", "{text}", {"text": text})
    return body


class LoadAdapterBody(RequestBody):
    """The name and the directory of a LoRA adapter to load."""

    lora_name: Annotated[str, Field(max_length=MAX_NAME_CHARS, json_schema_extra={"pattern": NAME_PATTERN})]
    lora_path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]
    load_inplace: Annotated[Literal[False], BOOLEAN] = False
    base_model_name: Label | None = None  # of the served models; None: the first one

    @model_validator(mode="before")
    @classmethod
    def with_both(cls, body: object) -> object:
        """Raise vLLM's error for a missing name or path."""
        return _require(body, "lora_name", "lora_path")


class UnloadAdapterBody(RequestBody):
    """The name of a LoRA adapter to unload."""

    lora_name: Annotated[str, Field(min_length=1)]
    lora_int_id: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63), WHOLE] | None = None  # ignored, as in vLLM

    @model_validator(mode="before")
    @classmethod
    def with_name(cls, body: object) -> object:
        """Raise an error like vLLM's for a missing name."""
        return _require(body, "lora_name")


class AdaptersApi:
    """Handler of requests that load and unload adapters."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    async def load(self, body: LoadAdapterBody, exchange: Exchange) -> None:
        """Load an adapter at all workers."""
        exchange.client.check_admin()
        models, name = self._service.models, body.lora_name
        catalog = self._catalog(body.base_model_name)
        if not is_adapter_name(name):
            raise FieldError(NAME, f"{NAME} must have {NAME_RULE}")
        if name in models.names:
            raise FieldError(NAME, f"{NAME} {name} is the name of a served model; choose another")
        owner = models.adapter_owner(name)
        if owner is not None and owner.catalog is not catalog:
            raise FieldError(NAME, f"{NAME} {name} is the name of an adapter of {owner.info.name}; choose another")
        await catalog.load(name, body.lora_path)
        await exchange.respond(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), TEXT)

    async def unload(self, body: UnloadAdapterBody, exchange: Exchange) -> None:
        """Unload an adapter everywhere; running requests end as usual."""
        exchange.client.check_admin()
        name, catalogs = body.lora_name, self._service.models.catalogs
        if not catalogs:
            raise NotFound(DISABLED)
        await _unload(catalogs, name)
        await exchange.respond(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), TEXT)

    def _catalog(self, base_model_name: str | None) -> AdapterCatalog:
        models = self._service.models
        model = models.named(base_model_name or models.names[0])
        if model.catalog is None:
            raise NotFound(DISABLED)
        return model.catalog


async def _unload(catalogs: Sequence[AdapterCatalog], name: str) -> None:
    """Unload an adapter of one of several models. Raises NotFound if none has it."""
    for catalog in catalogs[:-1]:
        with suppress(NotFound):
            await catalog.unload(name)
            return
    await catalogs[-1].unload(name)
