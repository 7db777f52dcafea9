"""Parties for test_processes; the arguments say what each does."""

import sys
import time

from tallystick.errors import DataError
from tallystick.network.messages import Message


class Word(Message, frozen=True):
    text: str


def party(stage, arguments):
    what = arguments[stage.name]
    if "ready" in what:
        stage.ready()
    if "loud" in what:  # far more than a pipe holds, on both
        sys.stderr.write("e" * 300_000 + "\n")
        sys.stdout.write("o" * 300_000 + "\n")
    if "wrong" in what:
        raise DataError("the secret column is wrong")
    if "bug" in what:
        raise RuntimeError("a bug")
    if "stuck" in what:
        time.sleep(600)
    for channel in stage.channels.values():
        channel.send(Word(text=f"{stage.name} says hello"))
    return sorted(channel.receive(Word).text for channel in stage.channels.values())
