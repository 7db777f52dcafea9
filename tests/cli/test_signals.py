"""SIGINT and SIGTERM end a command with one line and exit code 130, at any moment, and the end takes no time."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lanes import short_lane_of
from tiny import PATIENCE_S

from tallystick.cli import signals
from tallystick.cli.compare import EXIT_KEPT
from tallystick.cli.monitor import EXIT_DRIFTED
from tallystick.cli.output import EXIT_USAGE


@pytest.mark.parametrize("number", short_lane_of([signal.SIGINT, signal.SIGTERM], 1))
def test_a_signal_while_modules_load_is_one_line(tmp_path, number):
    command = [sys.executable, "-X", "importtime", "-m", "tallystick", "check", "party.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stderr:
            lines.append(line.rstrip())
            if line.startswith("import time:") and line.split("|")[-1].strip() == "torch.nn":  # and more is to come
                process.send_signal(number)
                break
        lines += process.stderr.read().splitlines()
        assert process.wait(PATIENCE_S) == 130
        assert process.stdout.read() == ""
    assert [line for line in lines if not line.startswith("import time:")] == ["interrupted before anything began"]


HANGING = """
import ctypes, os, sys, types
from tallystick.cli import signals
from tallystick.cli.compare import EXIT_KEPT
from tallystick.cli.monitor import EXIT_DRIFTED
from tallystick.cli.output import EXIT_USAGE
from tallystick.cli.output import guarded
def hang(name):
    if sys.argv[1] == "SIGINT of its own":
        os.kill(os.getpid(), 2)  # as OpenBLAS does where it gets no thread
    print("hangs", flush=True)
    ctypes.PyDLL(None).sleep(600)  # which keeps Python's lock
signals.importlib = types.SimpleNamespace(import_module=hang)
signals.HANGS_S = 2.0
guarded(lambda: None, as_json=False, loads=["numpy"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals wait")
@pytest.mark.parametrize("how", short_lane_of(["SIGINT", "SIGTERM", "SIGINT of its own"], 1))
def test_a_library_that_hangs_as_it_is_loaded_is_ended_with_one_line(how):
    """OpenBLAS asks for memory for ever if an address space has no more, and no Python runs meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "hangs\n"
        begun = time.monotonic()
        if " " not in how:
            process.send_signal(signal.Signals[how])
        out, said = process.communicate(timeout=PATIENCE_S)  # the other process has released both, too
        assert time.monotonic() - begun >= 2.0
    assert (process.returncode, out, said) == (-signal.SIGKILL, "", signals.HANGS)


def test_the_page_of_the_commands_names_every_exit_code():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("Exit code 0")]
    in_a_shell = 128 + signal.SIGKILL
    for code in (EXIT_USAGE, signals.EXIT_FAILED, EXIT_KEPT, EXIT_DRIFTED, signals.EXIT_INTERRUPTED, in_a_shell):
        assert re.search(rf"\b{code}\b", line)


BEFORE_ITS_WORK = """
import os, signal, sys
from tallystick.cli.main import main
import tallystick.cli.app
def strike(frame, event, _):
    if event == "call" and frame.f_code.co_name == "make_context":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)
sys.argv = ["tallystick", "--version"]
sys.setprofile(strike)
main()
"""


def test_a_signal_while_arguments_are_read_is_one_line(tmp_path):
    """Typer, which reads them, ends without a word."""
    done = subprocess.run([sys.executable, "-c", BEFORE_ITS_WORK], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


AS_SOMETHING_IS_MADE = """
import asyncio, os, signal, sys
from tallystick.cli.main import main
import tallystick.cli.app
def strike(frame, event, _):
    if event == "call" and frame.f_code.co_name == "_make_self_pipe":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)
def app():
    sys.setprofile(strike)
    asyncio.new_event_loop()
tallystick.cli.app.app = app
main()
"""


AMID_A_DESTRUCTOR = """
import os, signal, time
from tallystick.cli.main import main
import tallystick.cli.app
class Struck:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
def app():
    Struck()
    for _ in range(600):
        time.sleep(0.1)
    raise SystemExit(0)
tallystick.cli.app.app = app
main()
"""


@pytest.mark.parametrize("script", [AS_SOMETHING_IS_MADE, AMID_A_DESTRUCTOR], ids=["half made", "amid a destructor"])
def test_a_signal_is_one_line_and_not_lost(tmp_path, script):
    """Half an event loop complained when it was collected, in 1 of 200 kills; a destructor raises nothing."""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted before anything began\n")


END = """
import atexit, gc, signal, sys
def look():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    print(gc.get_freeze_count() / (gc.get_freeze_count() + len(gc.get_objects())), handlers == [signal.SIG_IGN] * 2)
atexit.register(look)
sys.argv = ["tallystick", "--version"]
from tallystick.cli.main import main
main()
"""


def test_at_the_end_no_garbage_is_collected_and_no_signal_makes_a_traceback(tmp_path):
    """Collecting it took 1 to 10 seconds, most of it after the line that says what happened."""
    done = subprocess.run([sys.executable, "-c", END], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    frozen, ignored = done.stdout.splitlines()[-1].split()
    assert float(frozen) > 0.9
    assert ignored == "True"


WITHIN_EXEC = """
import tallystick.cli.app
from tallystick.cli.main import main
def app():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        raise SystemExit(130)
tallystick.cli.app.app = app
main()
"""


def test_a_signal_within_generated_code_ends_with_the_usual_code(tmp_path):
    """It ended by the signal, in 3 of 200 kills on a busy machine: CPython remembers such an interrupt though it was handled."""
    (tmp_path / "struck.py").write_text(WITHIN_EXEC)
    done = subprocess.run([sys.executable, "-m", "struck"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (130, "")
