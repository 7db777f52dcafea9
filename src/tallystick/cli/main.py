"""The command line's entry: it answers to signals while modules load, and ends as soon as it has nothing more to say."""

import gc
import sys

from tallystick.cli.signals import EXIT_INTERRUPTED, NOTHING_BEGUN, ignore_signals, interruptible, signals_noted


def main() -> None:
    """Run the command line."""
    try:
        with signals_noted():
            from tallystick.cli.app import app
        interruptible()
        app()
    except KeyboardInterrupt:
        sys.stderr.write(f"{NOTHING_BEGUN}\n")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        ignore_signals()
        # Some 400,000 objects: Python's last collection of garbage would go through them all, for seconds on a busy machine.
        gc.freeze()
