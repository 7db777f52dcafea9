"""The command line: parses, calls, prints."""

import os

# PyTorch's threads spin between two operations; for how long must be said before it is loaded. Not at all means to wake them
# for each operation; for long takes the cores from the network's thread, and from a peer on the same machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
