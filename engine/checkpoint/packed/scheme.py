"""Description of packed matrices in a checkpoint: layout, bits and groups, for each module. No torch."""

import re
from dataclasses import dataclass

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.packed.name_pattern import matcher
from baton.engine.checkpoint.tensor_prefixes import Prefixes, stored_names
from baton.engine.errors import InvalidCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedScheme:
    """Layout of a packed matrix."""

    layout: str  # gptq, awq; words, bytes, nvfp4, mxfp4 (compressed-tensors)
    bits: int = 4
    group_size: int | None = None  # input columns that share a scale; None: all of them
    zero_offset: int = 0  # 1: stored zero points are less by 1
    has_zeros: bool = True  # False: the zero point is the middle code
    has_order: bool = False  # a column's group is stored


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """Scheme of the modules whose whole name matches a pattern; None: they are not quantised."""

    pattern: str  # regular expression
    scheme: PackedScheme | None

    def matches(self, module: str) -> bool:
        """Return whether the rule is for this module."""
        return bool(matcher(self.pattern)(module))


@dataclass(frozen=True, slots=True)
class PackedModules:
    """Schemes of a checkpoint's modules: the first rule that matches, otherwise the default."""

    default: PackedScheme | None = None
    rules: tuple[ModuleRule, ...] = ()
    prefixes: Prefixes = ()  # of the modules' names in the files

    def scheme_of(self, module: str) -> PackedScheme | None:
        """Return the scheme of a module such as model.layers.0.mlp.up_proj; None if it is not quantised."""
        rule = self._rule_of(module)
        return self.default if rule is None else rule.scheme

    @property
    def has_any(self) -> bool:
        """Whether any module is packed."""
        return self.default is not None or any(rule.scheme is not None for rule in self.rules)

    def is_excluded(self, module: str) -> bool:
        """Return whether a rule says that a module is not quantised."""
        rule = self._rule_of(module)
        return rule is not None and rule.scheme is None

    def _rule_of(self, module: str) -> ModuleRule | None:
        names = tuple(stored_names(module, self.prefixes))
        return next((rule for rule in self.rules if any(map(rule.matches, names))), None)


NOT_PACKED = PackedModules()


def checked_pattern(pattern: str, source: str) -> str:
    """Return a regular expression for names that begin with a match of `pattern`. Raises InvalidCheckpoint."""
    whole = f"(?:{pattern}).*"
    try:
        matcher(whole)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise InvalidCheckpoint(f"{source}: {shown(pattern)} is not a regular expression: {error}") from error
    return whole


def containing(text: str) -> str:
    """Return a pattern for all names that contain a text."""
    return f".*{re.escape(text)}.*"


def group_size(described: JsonObject, key: str, default: int | None = None) -> int | None:
    """Return the columns of a group; None if all columns share a scale, which is stored as -1."""
    value = described.integer(key, -1 if default is None else default)
    if value == -1:
        return None
    if value < 1:
        raise InvalidCheckpoint(f"{described.source}: {key} must be above 0, or -1 for whole columns, not {value}")
    return value
