"""Load everything that a job loads when this is imported, so that forked commands need not: loading takes longer than a tiny job.

Nothing here may start a thread, because a forked process has only the thread that forked.
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

gc.disable()  # loaded modules stay

LATE = ("cryptography.hazmat.backends.openssl.backend", "encodings.idna", "pyarrow.compute", "pyarrow.parquet")
"""Modules that a job's modules load only when they need them."""

for _name in ("tallystick.cli.app", "tallystick.cli.main", *LOADS, *LATE):
    importlib.import_module(_name)
for _file in resources.files("tallystick.report").iterdir():
    if _file.name.endswith(".j2"):
        compiled(_file.name)
for _library in ("torch", "numpy"):
    release_of(_library)
typer.main.get_command = cache(typer.main.get_command)  # building a command line takes a tenth of a tiny job's time
typer.main.get_command(app)
gc.freeze()  # so that no forked process's garbage collection goes through the loaded modules and copies their pages
gc.enable()
