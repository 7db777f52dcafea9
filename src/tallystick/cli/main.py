"""The command line's entry: it answers to signals while the commands load, and ends as soon as it has nothing more to say."""

import gc
import importlib
import sys

from tallystick.cli.signals import EXIT_INTERRUPTED, ignore_signals, interruptible, signals_noted

# One after the other, so that a signal need not wait for all of them.
_LOADED_FIRST = ("numpy", "torch", "polars", "pyarrow", "tallystick.cli.app")


def main() -> None:
    """Run the command line."""
    try:
        for module in _LOADED_FIRST:
            with signals_noted():
                importlib.import_module(module)
        app = importlib.import_module("tallystick.cli.app").app
        interruptible()
        app()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted before anything began\n")
        sys.exit(EXIT_INTERRUPTED)
    except SystemExit as end:
        if end.__context__ is not None and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            sys.stderr.write("interrupted\n")  # before or after a command's own work, where Typer ends without a word
        raise
    finally:
        ignore_signals()
        # Some 400,000 objects: Python's last collection of garbage would go through them all, for seconds on a busy machine.
        gc.freeze()
