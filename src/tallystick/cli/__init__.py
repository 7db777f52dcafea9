"""The command line: parses, calls, prints."""

import os

# PyTorch's threads spin between two operations unless told not to, before it is loaded. A party waits for its peers much
# of the time, and spinning then takes the cores from the network's threads, and from a peer on the same machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
