"""The relay that simulates a line between two companies: its rate and its delay, by bytes that really pass through it."""

import socket
import threading
import time

import pytest

from tallystick_experiments.speed.slow_link import SlowLink

SIZE, TRIES = 500_000, 20


@pytest.fixture
def answerer():
    """Open a port that answers SIZE bytes with one."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    left = SIZE
                    while left and (data := connection.recv(1 << 20)):
                        left -= len(data)
                    connection.sendall(b"x")
        except OSError:  # the test closed it
            return

    thread = threading.Thread(target=answer)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def seconds(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began = time.perf_counter()
        connection.sendall(bytes(SIZE))
        assert connection.recv(1) == b"x"
        return time.perf_counter() - began


def test_a_line_is_never_faster_than_it_says_and_as_fast_when_the_machine_is_free(answerer):
    """Sleeping once for each chunk made 60 Mbit/s of 100. A busy machine delays single tries, so the best of them counts."""
    link = SlowLink(mbit_per_s=100, round_trip_ms=20)
    least = SIZE * 8 / 100e6 + 0.02
    with link.running():
        port, taken = link.to(answerer), []
        while len(taken) < TRIES and (not taken or min(taken) > 1.2 * least):
            taken.append(seconds(port))
    assert least - 1e-3 <= min(taken) <= 1.2 * least
