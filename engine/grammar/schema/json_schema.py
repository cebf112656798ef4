"""JSON Schemas: keywords that the compiler would ignore are refused by name.

The compiler (xgrammar's converter) reads the first of `$ref`, `const`, `enum`, `anyOf`, `oneOf`, `allOf` and `type` in
a schema, and ignores the keywords next to it that belong to the others. Annotations, such as `title`, restrict nothing.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from baton.engine.grammar.schema.exclusion import TYPES_OF, Exclusion
from baton.engine.grammar.schema.finite import check_finite
from baton.engine.grammar.schema.place import Place
from baton.engine.grammar.schema.regex import check_string_pattern

Schema = Mapping[str, object]

IGNORED = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
    *("contains", "minContains", "maxContains", "additionalItems", "$dynamicRef", "$recursiveRef"),
)
REFERENCE = ("$ref",)
VALUES = ("const", "enum")
COMBINED = ("anyOf", "oneOf", "allOf")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NUMBERS = (*BOUNDS, "multipleOf")
TEXTS = ("pattern", "format", "minLength", "maxLength")
ARRAYS = ("items", "prefixItems", "unevaluatedItems", "minItems", "maxItems")
OBJECTS = (
    *("properties", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"),
    *("required", "minProperties", "maxProperties"),
)
TYPE_NAMES = ("object", "array", "string", "number", "integer", "boolean", "null")
RESTRICTING = ("type", *REFERENCE, *VALUES, *COMBINED, *NUMBERS, *TEXTS, *ARRAYS, *OBJECTS)
IMPLIES_TYPE = ("properties", "additionalProperties", "unevaluatedProperties", "items", "prefixItems")
FORMATS = (
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference"),
    "uri-template",
)
MAX_MULTIPLE = 1024  # larger ones, and bounded ranges from MAX_RANGE on, are ignored by the compiler
MAX_RANGE = 10000
MAX_SCHEMAS = 4096  # in a schema: checking that many takes some 20 ms
MAX_ONE_OF = 256
MAX_PATTERN_CHARS = 16384  # of all patterns in a schema
MIN_BOUND, MAX_BOUND = -1e18, 1e18  # of numbers; the compiler has 64 bits
MAX_DECIMALS = 6  # of a bound; the compiler rounds others
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1  # the compiler writes others as rounded floats
ONE_SCHEMA = ("items", "unevaluatedItems", "additionalProperties", "unevaluatedProperties", "propertyNames")
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
LISTED_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
MAX_COUNT = 10**9  # larger ones overflow in the compiler, which then enforces others


def check_schema(schema: object) -> None:
    """Raise ValueError, with the path of the problem, for a schema that would not be enforced as it is."""
    num_pattern_chars = 0
    exclusion = Exclusion(schema)
    for number, (place, current) in enumerate(schemas_in(schema)):
        if number == MAX_SCHEMAS:
            raise ValueError(f"the schema contains over {MAX_SCHEMAS} schemas; simplify it")
        try:
            if isinstance(current, dict):
                num_pattern_chars += sum(map(len, _patterns(current)))
                if num_pattern_chars > MAX_PATTERN_CHARS:
                    raise ValueError(f"the schema's patterns have over {MAX_PATTERN_CHARS} characters")
                _check(current, exclusion)
            elif not isinstance(current, bool):
                raise ValueError("a schema must be an object, true or false")
        except ValueError as error:
            raise ValueError(f"{str(place) or 'the schema'}: {error}") from None
    check_finite(schema, schemas_in(schema))


def patterns_of(schema: object) -> Iterator[str]:
    """Yield the regular expressions in a schema."""
    for _, current in schemas_in(schema):
        if isinstance(current, dict):
            yield from _patterns(current)


def schemas_in(schema: object) -> Iterator[tuple[Place, object]]:
    """Yield a schema and those in it, with their places."""
    pending = [(Place(), schema)]
    while pending:
        place, current = pending.pop()
        yield place, current
        if isinstance(current, dict):
            pending += [(Place(f".{name}", place), inner) for name, inner in _inner(current)]


def _patterns(schema: Schema) -> list[str]:
    return [each for each in (schema.get("pattern"), *_keys(schema.get("patternProperties"))) if isinstance(each, str)]


def _inner(schema: Schema) -> Iterator[tuple[str, object]]:
    """Yield the schemas in a schema, with their names in it."""
    for name in ONE_SCHEMA:
        inner = schema.get(name)
        if name == "propertyNames" and isinstance(inner, dict):
            # Names are strings, even if the schema has no type.
            yield name, inner if any(each in inner for each in VALUES) else {"type": "string", **inner}
        elif name in schema:
            yield name, inner
    for name in NAMED_SCHEMAS:
        named = schema.get(name)
        for key, inner in named.items() if isinstance(named, dict) else ():
            yield f"{name}.{key}", inner
    for name in LISTED_SCHEMAS:
        listed = schema.get(name)
        for place, inner in enumerate(listed if isinstance(listed, list) else ()):
            yield f"{name}[{place}]", inner


def _check(schema: Schema, exclusion: Exclusion) -> None:
    for name in IGNORED:
        if name in schema:
            raise ValueError(f"{name} is not supported")
    if schema.get("uniqueItems"):
        raise ValueError("uniqueItems is not supported")
    for name in ("type", "enum", *COMBINED):
        if schema.get(name) == []:
            raise ValueError(f"{name} is an empty list, which nothing matches")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPE_NAMES:
            raise ValueError(f"type must be one of {', '.join(TYPE_NAMES)}")
    for name in COUNTS:
        if isinstance(count := schema.get(name), int) and count > MAX_COUNT:
            raise ValueError(f"{name} must be at most {MAX_COUNT}")
    _check_values(schema)
    _check_siblings(schema)
    _check_reference(schema)
    _check_one_of(schema, exclusion)
    _check_text(schema)
    _check_number(schema)
    _check_object(schema)


def _check_siblings(schema: Schema) -> None:
    """Raise ValueError for a keyword that would be ignored because of another one."""
    leading = next((name for name in (*REFERENCE, *VALUES, *COMBINED) if name in schema), None)
    present = [name for name in RESTRICTING if name in schema and name != leading]
    if leading in VALUES:
        values = [schema["const"]] if leading == "const" else schema["enum"]
        if present == ["type"] and isinstance(values, list) and _all_of_type(values, schema["type"]):
            return
        if present:
            raise ValueError(f"{present[0]} next to {leading} is not supported; leave out what it excludes")
    elif leading is not None and present:
        raise ValueError(f"{present[0]} next to {leading} is not supported; put it into {leading}'s schemas")
    elif leading is None and "type" not in schema and present and not any(name in schema for name in IMPLIES_TYPE):
        raise ValueError(f"{present[0]} needs a type")
    all_of = schema.get("allOf")
    if isinstance(all_of, list) and len(all_of) > 1:
        raise ValueError("allOf with several schemas is not supported; merge them")


def _check_reference(schema: Schema) -> None:
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        raise ValueError('$ref must point into the same schema: "#" or "#/..."')
    if "~" in reference or "%" in reference:
        raise ValueError("$ref with escapes (~ or %) is not supported; rename what it points to")


def _check_one_of(schema: Schema, exclusion: Exclusion) -> None:
    options = schema.get("oneOf")
    if not isinstance(options, list):
        return
    if len(options) > MAX_ONE_OF:
        raise ValueError(f"oneOf has {len(options)} schemas, over the limit of {MAX_ONE_OF}; use anyOf")
    if not exclusion.holds(options):
        text = "its schemas exclude each other by type, constants or one required property"
        raise ValueError(f"oneOf is only supported if {text}; use anyOf")


def _check_text(schema: Schema) -> None:
    limits = [name for name in ("minLength", "maxLength") if name in schema]
    for name in limits:
        if isinstance(schema[name], bool) or not isinstance(schema[name], int) or not cast(int, schema[name]) >= 0:
            raise ValueError(f"{name} must be a whole number, 0 or more")
    if "pattern" in schema and ("format" in schema or limits):
        raise ValueError(f"{(*limits, 'format')[0]} next to pattern is not supported; put it into the pattern")
    if "format" in schema and limits:
        raise ValueError(f"{limits[0]} next to format is not supported")
    if "format" in schema and schema["format"] not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}")
    for pattern in _patterns(schema):
        check_string_pattern(pattern)


def _check_values(schema: Schema) -> None:
    """Raise ValueError for an integer in `const` or `enum` that would be written differently."""
    pending = [schema[name] for name in VALUES if name in schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
            raise ValueError("const and enum are only supported with integers of 64 bits")


def _check_number(schema: Schema) -> None:
    for name in BOUNDS:
        bound = schema.get(name, 0)
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not MIN_BOUND <= bound <= MAX_BOUND:
            raise ValueError(f"{name} must be a number from {MIN_BOUND:g} to {MAX_BOUND:g}")
        if round(bound, MAX_DECIMALS) != bound:
            raise ValueError(f"{name} is only supported with up to {MAX_DECIMALS} decimals")
    _check_range(schema)
    if "multipleOf" not in schema:
        return
    multiple, kind = schema["multipleOf"], schema.get("type")
    is_whole = isinstance(multiple, int) or (isinstance(multiple, float) and multiple.is_integer())
    if kind != "integer" or not is_whole or not 0 < cast(float, multiple) <= MAX_MULTIPLE:
        raise ValueError(f'multipleOf is only supported for "type": "integer", as an integer from 1 to {MAX_MULTIPLE}')
    low = [schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema]
    high = [schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema]
    if not (low or high):
        return
    numbers = [each for each in (*low, *high) if isinstance(each, int | float)]
    if not (low and high) or len(numbers) < len(low) + len(high) or max(numbers) - min(numbers) >= MAX_RANGE:
        raise ValueError(f"multipleOf with bounds needs both a minimum and a maximum, under {MAX_RANGE} apart")


def _check_range(schema: Schema) -> None:
    """Raise ValueError for bounds between which there is no number."""
    is_whole = schema.get("type") == "integer"
    low, high = -math.inf, math.inf
    for name in BOUNDS:
        if name not in schema:
            continue
        bound = cast(float, schema[name])
        if name.endswith("inimum"):
            bound = math.ceil(bound) + (name != "minimum" and math.ceil(bound) == bound) if is_whole else bound
            low = max(low, bound)
        else:
            bound = math.floor(bound) - (name != "maximum" and math.floor(bound) == bound) if is_whole else bound
            high = min(high, bound)
    if low > high or (low == high and not is_whole and _excludes(schema, low)):
        names = " and ".join(name for name in BOUNDS if name in schema)
        raise ValueError(f"{names} have no number between them")


def _excludes(schema: Schema, number: float) -> bool:
    return number in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))


def _check_object(schema: Schema) -> None:
    required, named = schema.get("required"), schema.get("properties")
    known = named.keys() if isinstance(named, dict) else ()
    if "required" in schema and not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise ValueError("required must be a list of strings")
    for name in required if isinstance(required, list) else ():
        if name not in known:
            raise ValueError(f"required has {json.dumps(name)[:100]}, which properties must define")
    extras = [name for name in ("patternProperties", "propertyNames") if name in schema]
    if len(extras) > 1 or (extras and "unevaluatedProperties" in schema):
        raise ValueError(f"{extras[0]} next to another rule for further properties is not supported")
    if extras and isinstance(schema.get("additionalProperties", False), dict):
        raise ValueError(f"{extras[0]} next to a schema in additionalProperties is not supported")
    if "propertyNames" in schema and known:
        raise ValueError("propertyNames next to properties is not supported; leave out the names it excludes")
    if "propertyNames" in schema and schema.get("additionalProperties") is False:
        raise ValueError("additionalProperties next to propertyNames would exclude all names; leave it out")
    names = schema.get("propertyNames")
    if isinstance(names, dict):
        _check_names(names)
    _check_min_properties(schema)
    patterns = _keys(schema.get("patternProperties"))
    if patterns and (len(patterns) > 1 or known):
        raise ValueError("patternProperties is only supported with one pattern and without properties")


def _check_names(names: Schema) -> None:
    """Raise ValueError for a schema in `propertyNames` that may not be one of strings."""
    for name in (*REFERENCE, *COMBINED):
        if name in names:
            raise ValueError(f"propertyNames with {name} is not supported; write its pattern or enum directly")
    values = [names["const"]] if "const" in names else names.get("enum", [])
    if names.get("type", "string") != "string" or not isinstance(values, list) or not _all_of_type(values, "string"):
        raise ValueError("propertyNames must be a schema of strings")


def _check_min_properties(schema: Schema) -> None:
    """Raise ValueError for a minimum that repeated names could fake: the compiler counts each of them."""
    least = schema.get("minProperties", 0)
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        raise ValueError("minProperties must be a whole number, 0 or more")
    further = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    is_named = further is False and "patternProperties" not in schema and "propertyNames" not in schema
    if least > 1 and not is_named:
        raise ValueError('minProperties over 1 is only supported with "additionalProperties": false; use required')


def _keys(value: object) -> Sequence[object]:
    return list(value) if isinstance(value, dict) else ()


def _all_of_type(values: Sequence[object], kind: object) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    return all(any(name in kinds for name in TYPES_OF[type(each)]) for each in values)
