"""A command that does what its argument says: a process that ends as no process should."""

import sys

if __name__ == "__main__":
    exec(sys.argv[1])
