"""Import this, then fork commands: each finds loaded what a job loads, which takes longer than a tiny job.

Nothing here may start a thread, for a forked process has only the thread that forked.
"""

import gc
import importlib
from importlib import resources

from tallystick.cli.jobs import LOADS
from tallystick.report.templating import compiled

LATE = ("cryptography.hazmat.backends.openssl.backend", "encodings.idna", "pyarrow.compute", "pyarrow.parquet")
"""What a job's modules load only when they come to need it."""

for _name in ("tallystick.cli.app", "tallystick.cli.main", *LOADS, *LATE):
    importlib.import_module(_name)
for _file in resources.files("tallystick.report").iterdir():
    if _file.name.endswith(".j2"):
        compiled(_file.name)
gc.freeze()  # no forked process's collection of garbage goes through what is loaded, and copies its pages
