"""Where a bucket of S3 is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A bucket and where it is. `endpoint` None: Amazon's of the region; `region` None: that of the environment."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" + (f" at {self.endpoint}" if self.endpoint else "")
