"""Run a worker process of this machine: it does tasks from the process that started it, one by one, and ends with it."""

import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import msgspec

from tallystick.compute.task import Work, perform

GRACE_S = 3.0
"""How long a task may clean up when nothing waits for it any more."""


def main() -> None:
    """Serve the connection whose file descriptor is the argument, until its other end is closed."""
    os.dup2(2, 1)  # standard output is for the results of the command that started this
    connection = Connection(int(sys.argv[1]))
    prepare, threads, versions = msgspec.msgpack.decode(connection.recv_bytes(), type=tuple[str, int, str])
    work = Work(prepare=prepare, shared=connection.recv_bytes())
    tasks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_receive, args=(connection, tasks, busy), daemon=True).start()
    try:
        while (task := tasks.get()) is not None:
            busy.set()
            connection.send_bytes(perform(work, task, threads=threads, versions=versions))
            busy.clear()
    except (KeyboardInterrupt, OSError):  # nothing waits for it
        return


def _receive(connection: Connection, tasks: "queue.SimpleQueue[bytes | None]", busy: threading.Event) -> None:
    """Receive tasks. End this process when the other end is closed or dead: a running task is interrupted, and cleans up."""
    try:
        while True:
            tasks.put(connection.recv_bytes())
    except (EOFError, OSError):
        tasks.put(None)
    if busy.is_set():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
