"""Tasks for the tests of engines; the input says what each does."""

import json
import os
import signal
import time
from pathlib import Path

from tallystick.errors import ConfigError, DataError


class Planted:
    """An answer of a machine that is not the party's own. When it is unpickled it writes down where."""

    def __init__(self, path):
        self.path = path

    def __radd__(self, other):
        return self

    def __reduce__(self):
        return exec, (f"import os; open({str(self.path)!r}, 'w').write(str(os.getpid()))", {})


def prepare(shared):
    """Do what an input says, in the folder that all share."""
    folder = Path(shared.decode())

    def chore(given):
        asked = json.loads(given)
        match asked:
            case ["square", number]:
                return json.dumps([number**2, os.getpid()]).encode()
            case ["raise", "data"]:
                raise DataError("the column 'x' has no values")
            case ["raise", "bug"]:
                raise ZeroDivisionError("a bug")
            case ["die", times, name]:
                (folder / f"{name}-{os.getpid()}").touch()
                if len(list(folder.glob(f"{name}-*"))) <= times:
                    os.kill(os.getpid(), signal.SIGKILL)
                return json.dumps("survived").encode()
            case ["plant", name]:
                return Planted(folder / name)
            case ["once", seconds, name]:
                (folder / name).touch()
                time.sleep(seconds)
                return json.dumps("done").encode()
            case ["sleep", seconds, name]:
                with (folder / f"{name}-tidy").open("w"):
                    try:
                        (folder / name).write_text(str(os.getpid()))  # a reader may interrupt at once
                        time.sleep(seconds)
                    finally:
                        (folder / f"{name}-tidy").unlink()
                return b"slept"
            case _:
                raise ValueError(asked)

    return chore


def unusable(shared):
    raise ConfigError(f"compute.test = {shared.decode()}: cannot be prepared")


def prepare_torch(_shared):
    import torch

    return lambda _: json.dumps([torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]]).encode()
