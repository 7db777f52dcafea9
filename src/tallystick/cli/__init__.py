"""Parse the command line, call the library, and print."""

import os

# PyTorch's threads spin between two operations; the time must be set before PyTorch is loaded. Without spinning, threads have to
# be woken for each operation; long spinning takes the cores from the network's thread, and from a peer on the same machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
