"""Check that a wheel has the parts that a build may silently omit: compiled modules, the model, the protos."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

NEEDED = (
    r"baton/router/index/native/prefix_index\.[^/]*\.so",
    r"baton/engine/native/block_hash\.[^/]*\.so",
    r"baton/engine/native/thread_team\.[^/]*\.so",
    r"baton/engine/native/paged_attention\.[^/]*\.so",
    r"baton/engine/native/layer_ops\.[^/]*\.so",
    r"baton/engine/native/products\.[^/]*\.so",
    r"baton/engine/native/grouped_products\.[^/]*\.so",
    r"baton/bundled_model/model\.safetensors",
    r"baton/bundled_model/tokenizer\.json",
    r"baton/bundled_model/config\.json",
    r"baton/protos/worker\.proto",
    r"baton/protos/worker_pb2\.py",
    r"baton/router/api_docs/built/index\.html",
    r"baton/router/api_docs/built/assets/docs-[^/]*\.js",
    r"baton/router/console/built/index\.html",
    r"baton/router/console/built/assets/console-[^/]*\.js",
    r"baton/deployment/ray/app\.py",
    r"baton/worker/server\.py",
    r"baton/membership/rendezvous/app\.py",
    r"baton/loadtool/page/[^/]*\.jinja",
    r"baton_serve-[^/]*\.dist-info/licenses/LICENSE",
)
ALLOWED = r"baton/.*|baton_serve-[^/]*\.dist-info/.*"  # anything else would be another package's in site-packages
NEVER = r".*\.(cpp|hpp|inl)"


def problems(names: Iterable[str]) -> list[str]:
    """Return the problems of a wheel with these files."""
    names = list(names)
    missing = [f"no file {each}" for each in NEEDED if not any(re.fullmatch(each, name) for name in names)]
    extra = [
        f"{name} does not belong there"
        for name in names
        if not re.fullmatch(ALLOWED, name) or re.fullmatch(NEVER, name)
    ]
    return missing + extra


def main(paths: list[str]) -> int:
    """Print the problems; return 1 if there are any, or if the argument is not one wheel."""
    if len(paths) != 1 or not Path(paths[0]).is_file():
        print(f"one wheel is needed, not {paths}", file=sys.stderr)
        return 1
    with ZipFile(paths[0]) as wheel:
        found = problems(wheel.namelist())
    for problem in found:
        print(f"{paths[0]}: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
