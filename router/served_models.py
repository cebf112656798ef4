"""All models that a router serves, by the names that requests give."""

import asyncio
import time
from collections.abc import Iterator, Sequence

from baton.router.adapters.catalog import AdapterCatalog
from baton.router.errors import Draining, FieldError
from baton.router.served_model import ServedModel
from baton.rpc.status import NotFound

MAX_MODEL_CHARS = 128  # of a wrong model name in the error message


class ServedModels:
    """The models, in the order of the options."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_name = {model.name: model for model in models}
        self._only = models[0] if len(models) == 1 else None
        self._known = ", ".join(f"`{name}`" for name in self._by_name)  # for errors

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(self._by_name)

    def named(self, name: str | None) -> ServedModel:
        """Return the model that a name means, with the adapter of this name; a single model needs none.

        Raises NotFound for an unknown name, FieldError if it is missing.
        """
        if not name:
            if self._only is None:
                raise FieldError("model", f"model is required: this server has {self._known}.")
            return self._only
        if (model := self._by_name.get(name)) is not None:
            return model
        for model in self:
            if model.catalog is not None and (adapter := model.catalog.get(name)) is not None:
                return model.with_adapter(adapter)
        raise NotFound(f"The model `{name[:MAX_MODEL_CHARS]}` does not exist; this server has {self._known}.")

    async def find(self, name: str | None) -> ServedModel:
        """Return the model that a request names, as `named`. An adapter may be loaded for the first time.

        Raises what `named`, `AdapterCatalog.find` and `AdapterCatalog.find_new` raise.
        """
        if not name or name in self._by_name:
            return self.named(name)
        adapted = [(model, model.catalog) for model in self if model.catalog is not None]
        for model, catalog in adapted:
            if (adapter := await catalog.find(name)) is not None:
                return model.with_adapter(adapter)
        for model, catalog in adapted:  # last: the adapter of another model may be in the directory, too
            if (adapter := await catalog.find_new(name)) is not None:
                return model.with_adapter(adapter)
        return self.named(name)

    def adapted_model(self, name: str) -> str:
        """Return the name of the model whose adapter has a name; empty: there is none. May be called in a thread."""
        if (owner := self.adapter_owner(name)) is not None:
            return owner.info.name
        found = (each for each in self if each.catalog is not None and each.catalog.is_in_directory(name))
        return next((each.info.name for each in found), "")

    def adapter_owner(self, name: str) -> ServedModel | None:
        """Return the model that has an adapter of this name, loaded or to be loaded; not what is in a directory."""
        return next((each for each in self if each.catalog is not None and each.catalog.lists(name)), None)

    @property
    def catalogs(self) -> list[AdapterCatalog]:
        """The catalogs of the models that have adapters."""
        return [model.catalog for model in self if model.catalog is not None]

    def context_len(self) -> int:
        """Return the maximum tokens of a prompt of any model."""
        return max(model.pipeline.context_len() for model in self)

    @property
    def num_inflight(self) -> int:
        """Completions in flight."""
        return sum(model.admission.num_inflight for model in self)

    @property
    def is_degraded(self) -> bool:
        """Whether requests to some model may miss cached prefixes."""
        return any(model.pool.is_degraded for model in self)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Return True once no request is in flight or waits, False after the timeout."""
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, end_s - time.monotonic())
            are_idle = await asyncio.gather(*(model.admission.wait_idle(left_s) for model in self))
            if not all(are_idle):
                return False
            if not any(model.admission.num_inflight or model.admission.num_waiting for model in self):
                return True  # otherwise a model that was idle first has got a request since then

    def begin_drain(self) -> None:
        """Hold no request for a first worker any more; serve those that have one."""
        for model in self:
            model.begin_drain()

    def end(self, error: Draining) -> None:
        """Reject new requests, and fail every request at the workers with the error."""
        for model in self:
            model.admission.draining = True
            model.pool.end(error)
            model.embedder.end(error)
