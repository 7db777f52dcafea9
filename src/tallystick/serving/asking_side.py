"""Run the side that has the clients: answer them over HTTP, and get scores in a separate thread."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.disclosure.serving import serving_lines
from tallystick.job.side_checks import check_listen
from tallystick.serving.side import ServingSide, Stop

if TYPE_CHECKING:
    import uvicorn

LEAVE_S = 2.0
"""Limit, in seconds, within which a round ends by itself once the server has ended: it says goodbye to the partners."""
END_S = 5.0
"""Limit, in seconds, within which a round ends after an interrupt."""


def answer_clients(side: ServingSide, server: "uvicorn.Server", score: Callable[[], None], *, stopped: Stop) -> None:
    """Answer clients until the operator stops it. ``score`` gets scores, with the other side or alone, until ``stopped`` is
    set.

    Stopping takes at most 12 seconds: 5 for answers under way, 2 to close sessions, 5 for work that has to be interrupted.

    Raises the error that ends ``score`` early, and ConfigError if the address is taken.
    """
    failed: list[BaseException] = []

    def keep_up() -> None:
        try:
            score()
        except BaseException as error:  # the main thread says so
            failed.append(error)
            server.should_exit = True

    listen = side.party.serving.listen
    assert listen is not None, "check_serving asks for it"
    check_listen(listen, key="serving.listen")
    for line in serving_lines(side.contract):
        side.watcher.say(line)
    # A daemon: work that cannot be interrupted, such as encoding a table, does not keep the process alive.
    thread = threading.Thread(target=keep_up, name="tallystick-partners", daemon=True)
    try:
        thread.start()
        scheme = "http" if side.party.serving.tls is None else "https"
        side.watcher.say(f"answering clients on {scheme}://{listen}/")
        server.run()
    except KeyboardInterrupt:
        pass  # the server has stopped normally
    finally:
        stopped.set()
        _joined(thread, LEAVE_S)
        if thread.is_alive():
            stopped.interrupt()
            _joined(thread, END_S)
            if thread.is_alive():
                side.watcher.say(f"a computation for the partners did not end within {END_S:g} s, and is abandoned")
    if failed and not isinstance(failed[0], KeyboardInterrupt):
        raise failed[0]


def _joined(thread: threading.Thread, seconds: float) -> None:
    until = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < until:
        thread.join(0.1)
