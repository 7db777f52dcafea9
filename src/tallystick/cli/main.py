"""Enter the command line: answer signals while modules load, and end as soon as nothing more has to be printed."""

import gc
import io
import sys
from pathlib import Path

from tallystick.cli.signals import EXIT_FAILED, EXIT_INTERRUPTED, NOTHING_BEGUN, ignore_signals, interruptible, signals_noted
from tallystick.errors import MachineError


def main() -> None:
    """Run the command line."""
    # Modules bring some 400,000 objects that stay: by default a sixth of their time is spent on looking for garbage among them.
    gc.set_threshold(100_000)
    # A terminal or file with a locale other than UTF-8 cannot show every letter of a column's name: its code replaces it.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        Path.cwd()
    except OSError as error:  # a library that cannot find it would end the process while it is loaded
        sys.stderr.write(f"error: the working folder cannot be found ({error.strerror}); change to another folder\n")
        sys.exit(EXIT_FAILED)
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
            sys.stderr.write("interrupted\n")  # before or after a command's own work, where Typer ends without a message
        raise
    finally:
        ignore_signals()
        # CPython remembers an interrupt that passed through exec(), as dataclasses use it, and under -m ends by that signal
        # although it was handled. Another exec() clears it.
        exec("")  # noqa: S102
        if "duckdb" in sys.modules:
            gc.unfreeze()  # it writes to standard error which of its own objects are not collected
        else:
            gc.freeze()  # some 400,000 objects: the last collection would visit them all, for seconds on a busy machine
