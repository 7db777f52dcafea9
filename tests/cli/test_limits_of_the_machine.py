"""A machine at its limits (memory, threads, files, a full disk): one line, and peers that wait are told."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.cli.output import EXIT_FAILED, guarded
from tallystick.errors import category_of, of_the_machine
from tallystick.storage import locked

ERRORS = {
    "thread": RuntimeError("can't start new thread"),
    "memory": MemoryError(),
    "numpy": MemoryError("Unable to allocate 3.0 GiB for an array"),
    "torch": RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried to"),
    "files": OSError(errno.EMFILE, "Too many open files", "/there"),
    "disk": OSError(errno.ENOSPC, "No space left on device", "/there"),
    "system": OSError(errno.ENOMEM, "Cannot allocate memory"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
def test_the_end_of_memory_threads_files_or_room_is_one_line(error, capsys):
    def work():
        raise error

    with pytest.raises(typer.Exit) as end:
        guarded(work, as_json=False)
    assert end.value.exit_code == EXIT_FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "free" in line or "raise the limit" in line
    assert "unexpectedly" not in category_of(error)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the address space")
@pytest.mark.parametrize("gibibytes", [1.2, 1.45, 1.9])
def test_too_little_address_space_is_one_line_before_a_library_hangs(gibibytes, tmp_path):
    """Polars waited for ever for threads that the system did not give it, and did not react to signals."""
    code = "import resource, sys\n"
    code += f"resource.setrlimit(resource.RLIMIT_AS, ({int(gibibytes * 2**30)},) * 2)\n"
    code += f"sys.argv = ['tallystick', 'check', {str(tmp_path / 'p.yaml')!r}]\nfrom tallystick.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == EXIT_FAILED
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: this process may have {gibibytes:.1f} GiB of address space (ulimit -v)")


def test_a_working_folder_that_was_removed_is_one_line(tmp_path):
    """Intel's MKL ended the process when it should load torch's files."""
    code = f"import os, sys\nos.rmdir({str(tmp_path)!r})\nsys.argv = ['tallystick', 'check', '/p.yaml']\n"
    code += "from tallystick.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == EXIT_FAILED
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the working folder cannot be found (No such file or directory); change to another")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG])
@pytest.mark.parametrize("command", [["init", "bank", "--role", "label"], ["cert", "certs", "bank", "shop"]])
def test_a_folder_that_this_user_may_not_make_is_one_line(number, command, tmp_path, monkeypatch):
    """It was a traceback of ``pathlib``."""

    def refused(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refused)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == EXIT_FAILED
    assert done.stderr.startswith(f"error: cannot make the folder {command[1]}: {os.strerror(number)}; ")
    assert any(words in done.stderr for words in ("give this user the right", "choose another folder", "choose a shorter name"))
    assert "unexpectedly" not in category_of(OSError(number, os.strerror(number), "/there"))


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(errno.EBADF, "Bad file descriptor"), KeyError("x")])
def test_a_bug_keeps_its_traceback(error):
    def work():
        raise error

    assert of_the_machine(error) is None
    with pytest.raises(type(error)):
        guarded(work, as_json=False)


def test_a_lock_on_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)

    def work():
        with locked(Path(tmp_path)):
            pass

    with pytest.raises(typer.Exit):
        guarded(work, as_json=False)
    assert capsys.readouterr().err == f"error: cannot lock {tmp_path}: No space left on device; free some space\n"


NO_THREAD = """
import os, signal
from tallystick.cli import signals
from tallystick.cli.output import guarded
def without_threads(name):
    signal.raise_signal(signal.SIGINT)  # as OpenBLAS does where the system gives it no thread
signals.importlib.import_module = without_threads
guarded(lambda: None, as_json=False, loads=["numpy"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who sent a signal")
def test_a_library_that_gets_no_thread_as_it_is_loaded_is_no_interrupt_of_a_persons():
    done = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True, timeout=120)
    assert "error: a library could not start its threads while it was loaded; free some memory" in done.stderr, done.stderr
    assert "interrupted" not in done.stderr
    by_a_person = NO_THREAD.replace("signal.raise_signal(signal.SIGINT)", "os.system(f'kill -INT {os.getpid()}')")
    asked = subprocess.run([sys.executable, "-c", by_a_person], capture_output=True, text=True, timeout=120)
    assert "interrupted before anything began" in asked.stderr
