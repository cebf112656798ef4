"""Process that writes and reads random blocks of a directory, until it is killed or has done so many writes.

python -m tests.unit.kvtransfer.store.writer ROOT CAPACITY BLOCK_BYTES SEED [WRITES [PLUGIN]]
"""

import random
import sys
from itertools import count
from pathlib import Path

from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.nixl_files import NixlFiles
from tests.unit.kvtransfer.store.store_rig import NAMESPACE, block_of, key_of, read

NUM_BLOCKS = 64


def main(root: str, capacity: str, block_bytes: str, seed: str, writes: str = "0", plugin: str = "") -> None:
    """Exit with an error after a wrong block. `plugin`: of NIXL, which copies the files."""
    draw, num_bytes = random.Random(int(seed)), int(block_bytes)
    store = DirectoryStore(Path(root), NAMESPACE, int(capacity), files=NixlFiles(plugin, {}) if plugin else None)
    print("open", flush=True)
    for _ in range(int(writes)) if int(writes) else count():
        block = draw.randrange(NUM_BLOCKS)
        store.write(key_of(block), block_of(block, num_bytes))
        read(store, draw.randrange(NUM_BLOCKS), num_bytes)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
