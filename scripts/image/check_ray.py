"""Smoke test of the image: start a Ray node as KubeRay does, and run the probes of KubeRay and of the chart."""

import os
import signal
import subprocess
import tempfile
import time

# The operator's start command of a head group, without its generated values.
START = (
    "ulimit -n 65536; exec ray start --head --block --no-monitor --dashboard-host=0.0.0.0 --metrics-export-port=8080 "
    "--num-cpus=0 --object-store-memory=134217728"
)
PROBES = (
    "wget -T 2 -q -O- http://localhost:52365/api/local_raylet_healthz | grep success",
    "wget -T 2 -q -O- http://localhost:8265/api/gcs_healthz | grep success",
    "wget -T 2 -q -O- http://localhost:52365/api/healthz",
    "ray health-check --address 127.0.0.1:6379",
    "wget -T 2 -q -O- http://localhost:8080/metrics | grep ^ray_",
)
READY_S = 120


def succeeds(probe: str) -> bool:
    """Whether a probe succeeds."""
    return subprocess.run(["bash", "-c", probe], check=False, capture_output=True).returncode == 0


def main() -> None:
    """Raise if a probe does not succeed in time, or if the node ends."""
    with tempfile.TemporaryFile() as log:
        node = subprocess.Popen(
            ["/bin/bash", "-c", START], stdout=log, stderr=log, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        )
        try:
            end_s = time.monotonic() + READY_S
            for probe in PROBES:
                while not succeeds(probe):
                    if time.monotonic() > end_s or node.poll() is not None:
                        log.seek(0)
                        raise RuntimeError(f"{probe}: failed\n{log.read().decode()}")
                    time.sleep(1)
                print(f"uid {os.getuid()}: {probe}")
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(60)


if __name__ == "__main__":
    main()
