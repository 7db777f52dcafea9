"""Run a command that gets stuck once: ``python -m tallystick_robustness.stuck HOW AT ARGUMENTS...``.

HOW is ``silent``, where heartbeats go on and nothing else is sent, ``stopped`` (SIGSTOP) or ``killed`` (SIGKILL). AT is a message
and how often it is sent before that, ``CutEmbedding:10``, or a phase, ``phase:evaluation``. The file ``stuck`` in the folder
shows that the command is stuck.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tallystick.cli.main import main as command
from tallystick.job.log import Logbook
from tallystick.network.channel import Channel
from tallystick.network.messages import Message
from tallystick.network.session import Session

MARK = "stuck"


def main(how: str, at: str, arguments: Sequence[str]) -> None:
    """Run the command until it gets stuck."""
    kind, _, which = at.partition(":")
    counts, send, during = Counter[str](), Session.send, Logbook.during

    def send_or_hang(self: Session, message: Message) -> None:
        name = type(message).__name__
        counts[name] += 1
        if name == kind and counts[name] == int(which):
            _hang(how)
        send(self, message)

    def begin_or_hang(self: Logbook, name: str, channels: Sequence[Channel]) -> AbstractContextManager[None]:
        if kind == "phase" and name == which:
            _hang(how)
        return during(self, name, channels)

    Session.send = send_or_hang  # type: ignore[method-assign]
    Logbook.during = begin_or_hang  # type: ignore[assignment, method-assign]
    sys.argv = ["tallystick", *arguments]
    command()


def _hang(how: str) -> None:
    Path(MARK).touch()
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
