"""Run a PostgreSQL server, from the binaries of Debian's package."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.network.addresses import free_port

PASSWORD = "hunter 2@home"


def binaries() -> Path:
    """Return the folder of the newest version's binaries; skip the test if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    if not found or not all((found[-1] / name).exists() for name in ("initdb", "pg_ctl", "psql")):
        pytest.skip("no PostgreSQL server under /usr/lib/postgresql (apt-get install postgresql)")
    return found[-1]


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run a server for a while. Return its address, for the user `me` with PASSWORD and the database `postgres`."""
    folder = Path(tempfile.mkdtemp(prefix="tallystick-postgres-"))  # pytest's folders are closed to other users
    port, root = free_port(), os.geteuid() == 0
    tools = binaries()

    def run(tool: str, *arguments: str) -> None:
        # A server refuses to run as root.
        person = pwd.getpwnam("nobody")
        who = {"user": person.pw_uid, "group": person.pw_gid, "extra_groups": ()} if root else {}
        with (folder / f"{tool}.log").open("w") as log:
            subprocess.run([tools / tool, *arguments], check=True, stdout=log, stderr=log, cwd=folder, timeout=60, **who)

    try:
        (folder / "password").write_text(PASSWORD)
        if root:
            for path in (folder, folder / "password"):
                shutil.chown(path, "nobody")
        data = str(folder / "data")
        run("initdb", "--no-sync", "--auth=scram-sha-256", "--username=me", "--pwfile=password", "--encoding=UTF8", "-D", data)
        options = f"-k {folder} -h 127.0.0.1 -p {port} -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "server.log"), "-o", options, "start")
        try:
            yield f"127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
