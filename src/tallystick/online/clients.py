"""Whoever has the clients answers them over HTTP, and asks the other side in a thread of its own."""

import threading
from typing import TYPE_CHECKING

from tallystick.disclosure.serving import serving_lines
from tallystick.job.process import Work
from tallystick.online.side import ServingSide

if TYPE_CHECKING:
    import uvicorn


def answer_clients(side: ServingSide, server: "uvicorn.Server", work: Work[None], *, stopped: threading.Event) -> None:
    """Answer clients until the operator ends it; ``work`` is done in each session with the other side.

    Raises what ends the work for good.
    """
    failed: list[BaseException] = []

    def keep_up() -> None:
        try:
            side.in_rounds(work, stopped=stopped)
        except BaseException as error:  # said by the main thread
            failed.append(error)
            server.should_exit = True

    for line in serving_lines(side.contract):
        side.watcher.say(line)
    thread = threading.Thread(target=keep_up, name="tallystick-partners")
    thread.start()
    try:
        side.watcher.say(f"clients are answered on {side.party.serving.listen}")
        server.run()
    except KeyboardInterrupt:
        pass  # the server has ended well
    finally:
        stopped.set()
        thread.join()
    if failed:
        raise failed[0]
