"""GGUF files in repositories of the Hugging Face hub: `org/repo:Q4_K_M` and `org/repo/file.gguf`."""

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath

import click

from baton.cli.options.hub import at_revision, cached_snapshot, download, hub_names
from baton.engine.checkpoint.gguf.tensors import model_name
from baton.engine.checkpoint.tensor_index import GGUF

FORM = re.compile(r"(?P<hub_id>[^/:.~][^/:]*/[^/:]+)(?:[:/](?P<file>[^:]+\.gguf)|:(?P<quantization>[^/:]+))")
PROJECTOR = "mmproj"  # in the name of a file for images
MAX_SHOWN = 40


@dataclass(frozen=True, slots=True)
class HubGguf:
    """A model in GGUF files of a repository."""

    hub_id: str
    wanted: str  # quantization, or path of a file

    @classmethod
    def read(cls, text: str) -> "HubGguf | None":
        """Return the model that a text means; None if it means something else."""
        match = FORM.fullmatch(text)
        return None if match is None else cls(match["hub_id"], match["file"] or match["quantization"])

    def choose(self, names: Collection[str]) -> list[str]:
        """Return those of a repository's files that the model is in, in order. Raises UsageError."""
        models: dict[str, list[str]] = defaultdict(list)
        for name in sorted(names):
            path = PurePosixPath(name)
            if path.suffix == GGUF and PROJECTOR not in path.name:
                models[str(path.parent / model_name(Path(path)))].append(name)
        found = [model for model, files in models.items() if self._is_meant(model, files)]
        if len(found) == 1:
            return models[found[0]]
        if not models:
            raise click.UsageError(f"{self.hub_id} has no GGUF files; leave out {self.wanted!r}")
        what = f"several GGUF models for {self.wanted}" if found else f"no GGUF model for {self.wanted}"
        shown = ", ".join((found or list(models))[:MAX_SHOWN])
        raise click.UsageError(f"{self.hub_id} has {what}; name one of {shown}, as {self.hub_id}/NAME.gguf")

    def _is_meant(self, model: str, files: Collection[str]) -> bool:
        """Whether one of a model's files is wanted by its path, or its name ends with the wanted quantization."""
        if self.wanted.endswith(GGUF):
            return self.wanted in files or str(PurePosixPath(self.wanted).with_suffix("")) == model
        return re.search(rf"(?:^|[-._/]){re.escape(self.wanted)}$", model, re.IGNORECASE) is not None

    def download(self, revision: str | None, directory: Path | None = None) -> tuple[Path, str | None]:
        """Download the files into a directory or the hub's cache, which is enough if the hub cannot be reached.

        Return the first file's path, and the commit. Raises ClickException.
        """
        try:
            commit, names = hub_names(self.hub_id, revision)
        except click.ClickException:
            if directory is not None or (cached := cached_snapshot(self.hub_id, revision)) is None:
                raise
            found = [path.relative_to(cached).as_posix() for path in cached.rglob(f"*{GGUF}")]
            return cached / self.choose(found)[0], cached.name
        files = self.choose(names)
        root = download(self.hub_id, [escape(name) for name in files], directory, commit or revision, ignored=())
        if missing := [name for name in files if not (root / name).is_file()]:
            raise click.ClickException(f"{at_revision(self.hub_id, revision)} is incomplete: {', '.join(missing)}")
        return root / files[0], commit
