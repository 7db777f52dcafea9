"""The command line's entry: it answers to signals while modules load, and ends as soon as it has nothing more to say."""

import gc
import io
import sys

from tallystick.cli.signals import EXIT_FAILED, EXIT_INTERRUPTED, NOTHING_BEGUN, ignore_signals, interruptible, signals_noted
from tallystick.errors import MachineError


def main() -> None:
    """Run the command line."""
    # Modules bring some 400,000 objects that stay: by default a sixth of their time goes into looking for garbage among them.
    gc.set_threshold(100_000)
    # A terminal or file of a locale without UTF-8 cannot take every letter of a column's name: its code stands in its place.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with signals_noted():
            from tallystick.cli.app import app
        interruptible()
        app()
    except MachineError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.stderr.write(f"{NOTHING_BEGUN}\n")
        sys.exit(EXIT_INTERRUPTED)
    except SystemExit as end:
        if end.__context__ is not None and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            sys.stderr.write("interrupted\n")  # before or after a command's own work, where Typer ends without a word
        raise
    finally:
        ignore_signals()
        # CPython remembers an interrupt that passed through exec(), as dataclasses use it, and under -m ends by that signal
        # though it was handled; another exec() makes it forget.
        exec("")  # noqa: S102
        if "duckdb" in sys.modules:
            gc.unfreeze()  # it writes to standard error what of its own is not collected
        else:
            gc.freeze()  # some 400,000 objects: the last collection would go through them all, for seconds on a busy machine
