"""Strategic merge patch: as a merge patch, but lists whose items can be told apart are merged item by item."""

from typing import Any

from tests.helm.api_server.changes.field_sets import element
from tests.helm.api_server.changes.json_patch import merged
from tests.helm.api_server.errors import Json
from tests.helm.api_server.list_shapes import Path, is_set, list_keys

ORDER, WITHOUT, ONLY = "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys"


def strategically_merged(document: Json, patch: Json, path: Path = ()) -> Json:
    """The object after the patch."""
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    result = dict(document)
    if ONLY in patch:
        result = {name: value for name, value in result.items() if name in patch[ONLY]}
    for name, value in patch.items():
        if name.startswith(WITHOUT):
            field = name.removeprefix(WITHOUT)
            result[field] = [each for each in result.get(field, ()) if each not in value]
        elif value is None:
            result.pop(name, None)
        elif not name.startswith("$"):
            result[name] = _merged_field(result.get(name), value, (*path, f"f:{name}"))
    return result


def _merged_field(live: Any, value: Any, path: Path) -> Any:
    if isinstance(value, dict):
        return strategically_merged(live if isinstance(live, dict) else {}, value, path)
    if isinstance(value, list) and is_set(path):
        return [*(live or ()), *(each for each in value if each not in (live or ()))]
    if isinstance(value, list) and (keys := list_keys(path)):
        return _merged_items(live or [], value, keys, path)
    return merged(live, value)


def _merged_items(live: list[Json], patches: list[Json], keys: tuple[str, ...], path: Path) -> list[Json]:
    if any(each == {"$patch": "replace"} for each in patches):
        return [each for each in patches if "$patch" not in each]
    items = {element(each, keys): each for each in live}
    for patch in patches:
        at = element(patch, keys)
        if patch.get("$patch") == "delete":
            items.pop(at, None)
        else:
            items[at] = strategically_merged(items.get(at, {}), patch, (*path, at))
    return list(items.values())
