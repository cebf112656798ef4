"""Options of a router that bound requests: their number, their size, their images, and output not yet read."""

from dataclasses import dataclass

from baton.router.config_checks import check_media_domains
from baton.router.images.limits import images_per_prompt, resized_bounds
from baton.settings.options import option
from baton.settings.values import JsonText


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Bounds on requests and on the memory that they take."""

    max_inflight: int = option(
        8192, "Maximum completions of all models in progress, whatever the workers' capacity.", minimum=1
    )
    max_queue: int = option(
        2048, "Maximum completions of a model waiting in the router; further ones get 429.", minimum=0
    )
    max_queue_wait_s: float | None = option(
        None,
        "Maximum seconds a request may wait in the router's queue; longer waits get 429. Default: unlimited.",
        minimum=0.001,
    )
    default_timeout_s: float | None = option(
        None, "Time limit in seconds of requests that set none. Default: unlimited.", minimum=0.001
    )
    max_choices: int = option(128, "Maximum completions (prompts times n) of one request.", minimum=1)
    max_stop: int = option(16, "Maximum stop strings of one request.", minimum=0)
    max_body_bytes: int = option(16 << 20, "Largest request, over HTTP or gRPC.", minimum=1024)
    max_body_bytes_in_flight: int = option(
        512 << 20,
        "Maximum bytes of requests that are not yet tokenised, or over gRPC not yet finished; further ones get 429.",
        minimum=1024,
    )
    max_client_body_bytes_in_flight: int = option(
        128 << 20, "The same for one API key; without keys, for one IPv4 address or IPv6 /64 network.", minimum=1024
    )
    limit_mm_per_prompt: JsonText = option(
        JsonText('{"image": 8}'), 'Maximum images of one request, as in vLLM: {"image": 4}.'
    )
    mm_processor_kwargs: JsonText | None = option(
        None,
        'Bounds on resized images in place of the checkpoint\'s, as in vLLM: {"max_pixels": 1003520}. Default: none.',
    )
    max_image_bytes: int = option(20 << 20, "Largest file of an image.", minimum=1024)
    max_image_pixels: int = option(50_000_000, "Maximum pixels of an image before it is resized.", minimum=1024)
    allowed_media_domains: tuple[str, ...] = option(
        (),
        "Hosts from which the router fetches images by http or https, separated by commas: names, and addresses, which "
        "must be listed themselves if they are private. Default: none, images are data URLs.",
    )
    body_timeout_s: float = option(
        60.0,
        "Maximum seconds to receive an HTTP request, plus one for each 16 KiB of it; slower ones get 408.",
        minimum=0.001,
    )
    max_request_unread_bytes: int = option(
        64 << 20,
        "Maximum bytes of output of one request that its client has not read; above it the request is aborted.",
        minimum=1 << 16,
    )
    max_key_unread_bytes: int = option(512 << 20, "The same for all requests with one API key.", minimum=1 << 16)
    max_unread_bytes: int = option(1 << 30, "The same for all requests of a router process.", minimum=1 << 16)

    def check_images(self) -> None:
        """Raise OptionError for invalid options of images."""
        images_per_prompt(self.limit_mm_per_prompt)
        resized_bounds(self.mm_processor_kwargs)
        check_media_domains(self.allowed_media_domains)
