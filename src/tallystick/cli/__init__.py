"""Parse the command line, call the library, and print."""

import os

# PyTorch's threads spin between two operations; the time must be set before PyTorch is loaded. Without spinning, threads have to
# be woken for each operation; long spinning takes the cores from the network's thread, and from a peer on the same machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Polars' memory that is free again goes back to the system after this time, and not after half a second: reading a million keys
# takes 40 to 70 MiB less. At 0 it would take a sixth more processor time.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:50,muzzy_decay_ms:0")
