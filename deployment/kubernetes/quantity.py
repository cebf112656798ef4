"""Amounts as Kubernetes writes them: "4", "1.5", "500m", "2k", "16Gi", "1e3"."""

import re
from decimal import Decimal

MOST = Decimal(2**63 - 1)  # larger ones mean this, to Kubernetes too

_FORM = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,4}))?")
_DECIMAL = {
    name: Decimal(10) ** power for name, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}
_BINARY = {f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)}
_FACTORS = _DECIMAL | _BINARY


def parse_quantity(text: str) -> Decimal:
    """The amount of a resource. Raises ValueError if the text is none; no resource has a negative one."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number, suffix, exponent = match.groups()
    factor = _FACTORS[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    return min(Decimal(number) * factor, MOST)
