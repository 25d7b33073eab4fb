"""All benchmarks, one after the other: python -m benchmarks. Each is also a command of its own."""

from __future__ import annotations

import subprocess
import sys

PARTS = ("retrieval", "per_client", "ragged", "steady", "soak", "scale", "tpu", "simulators")

if __name__ == "__main__":
    failed = []
    for part in PARTS:
        print(f"== python -m benchmarks.{part}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{part}", *sys.argv[1:]]).returncode:
            failed.append(part)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
