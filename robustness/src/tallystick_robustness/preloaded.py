"""Import this, then fork commands: each finds loaded what a job loads, which takes longer than a tiny job.

Nothing here may start a thread, for a forked process has only the thread that forked.
"""

import gc
import importlib
from functools import cache
from importlib import resources

import typer.main

from tallystick.cli.app import app
from tallystick.cli.jobs import LOADS
from tallystick.job.handshake import release_of
from tallystick.report.templating import compiled

gc.disable()  # what is loaded stays

LATE = ("cryptography.hazmat.backends.openssl.backend", "encodings.idna", "pyarrow.compute", "pyarrow.parquet")
"""What a job's modules load only when they come to need it."""

for _name in ("tallystick.cli.app", "tallystick.cli.main", *LOADS, *LATE):
    importlib.import_module(_name)
for _file in resources.files("tallystick.report").iterdir():
    if _file.name.endswith(".j2"):
        compiled(_file.name)
for _library in ("torch", "numpy"):
    release_of(_library)
typer.main.get_command = cache(typer.main.get_command)  # a command line is built for a tenth of a tiny job's time
typer.main.get_command(app)
gc.freeze()  # no forked process's collection of garbage goes through what is loaded, and copies its pages
gc.enable()
