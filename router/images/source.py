"""An image as a request names it, and the bytes of data URLs."""

import base64
import binascii
import dataclasses

from baton.router.errors import FieldError

DATA = "data:"
BASE64 = ";base64"
HINT = "data:image/png;base64,... of a PNG, JPEG, WebP or GIF image"


@dataclasses.dataclass(frozen=True, slots=True)
class ImageSource:
    """The URL of an image, and the request's field that has it."""

    field: str  # such as messages[0].content[1].image_url
    url: str = dataclasses.field(repr=False)  # may be megabytes

    @property
    def is_data(self) -> bool:
        """Whether the URL has the image itself."""
        return self.url.startswith(DATA)


def data_url_bytes(source: ImageSource, max_bytes: int) -> bytes:
    """Return the bytes in a data URL (RFC 2397) in base64. Raises FieldError, also for more than `max_bytes`."""
    head, comma, encoded = source.url.partition(",")
    if not comma or not head.startswith(DATA) or not head.endswith(BASE64):
        raise FieldError(source.field, f"{source.field} must be {HINT}")
    if len(encoded) // 4 * 3 > max_bytes + 2:
        raise too_large(source, len(encoded) // 4 * 3, max_bytes)
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(source.field, f"{source.field} is not valid base64: {error}") from error
    if len(content) > max_bytes:
        raise too_large(source, len(content), max_bytes)
    return content


def too_large(source: ImageSource, num_bytes: int, max_bytes: int) -> FieldError:
    """Return the error for an image with too many bytes."""
    text = f"{source.field} has {num_bytes} bytes, over the limit of {max_bytes} for an image"
    return FieldError(source.field, text)
