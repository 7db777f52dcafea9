"""The way through an HTTP proxy, which is a separate process."""

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import QUICK, error_of, within

from tallystick.errors import ConfigError, PeerLost
from tallystick.network.addresses import free_port
from tallystick.network.certificates import probe
from tallystick.network.link import LinkBroken
from tallystick.network.messages import MEBIBYTE
from tallystick.network.proxy import Proxy, ProxyRefused, check_answer, checked_proxy, is_whole

from .wire import Note

SECRET = "carol:s3cret-of-c:rol"


class ProxyProcess:
    def __init__(self, *arguments):
        command = [sys.executable, str(Path(__file__).with_name("connect_proxy.py")), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"
        self.said = []
        self._reading = threading.Thread(target=lambda: self.said.extend(line.strip() for line in self._process.stdout))
        self._reading.start()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._reading.join()
        self._process.stdout.close()


@pytest.fixture
def proxy():
    made = []

    def start(*arguments):
        made.append(ProxyProcess(*arguments))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("mode", ["open", "interim"])  # interim answers: 1xx come before the one that counts
def test_a_session_goes_through_a_proxy_and_tls_from_end_to_end(networks, pool, proxy, mode):
    between = proxy(mode, SECRET)
    bank = networks("bank", listen="127.0.0.1:0")
    shop = networks("shop", proxy=Proxy(address=between.address, credentials=SECRET))
    waiting = pool.submit(bank.connect, {"shop": None})
    at_shop = shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"]
    at_bank = waiting.result()["shop"]
    for number in range(3):
        at_shop.send(Note(number=number, ballast=bytes(MEBIBYTE)))
        at_bank.send(Note(number=number))
        assert at_bank.receive(Note).number == at_shop.receive(Note).number == number
    assert within(5, lambda: len(between.said) == 2)
    assert between.said == [f"CONNECT 127.0.0.1:{bank.port} HTTP/1.1", "TLS"]
    assert (
        probe(shop.identity, "bank", f"127.0.0.1:{bank.port}", proxy=Proxy(address=between.address, credentials=SECRET)) is None
    )


@pytest.mark.parametrize(
    ("mode", "credentials", "said"),
    [
        (
            "forbidden",
            None,
            "answers 403 Forbidden by ?[31mpolicy: it does not let this party connect there; ask the people who run it",
        ),
        (
            "open",
            None,
            "answers 407 Proxy Authentication Required: it asks for a user and a password; say in proxy.credentials where",
        ),
        ("open", "carol:wrong", "it refuses the user and password in proxy.credentials"),
    ],
)
def test_a_proxy_that_refuses_ends_the_wait_at_once(networks, identity, proxy, mode, credentials, said):
    between = proxy(mode, SECRET)
    through = Proxy(address=between.address, credentials=credentials)
    shop = networks("shop", limits=replace(QUICK, wait_s=30), proxy=through)
    address = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    error = error_of(shop.connect, {"bank": address})
    assert time.monotonic() - began < 10
    assert isinstance(error, PeerLost)
    for text in (str(error), probe(identity("shop"), "bank", address, proxy=through)):
        assert text.startswith(f"bank at {address}: the proxy at {between.address} ")
        assert said in text
        assert "wrong" not in text
        assert text.isprintable()


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("hang", "accepted the connection but did not answer within 1 s"),
        ("rubbish", "does not answer like an HTTP proxy: '220 mail.example.org ?[2J ESMTP"),
        ("endless", "does not answer like an HTTP proxy: 'HTTP/1.1 200 OK"),
        ("hasty", "sent more than its answer before anything was sent through it"),
        ("hang-up", "hung up when it was asked for a connection"),
        ("bad-gateway", "answers 502 Bad Gateway: it did not reach the peer"),
        ("open", "answers 502 Bad Gateway: it did not reach the peer"),  # nobody listens at the address
    ],
)
def test_a_proxy_that_is_of_no_use_is_named(networks, identity, proxy, mode, said):
    between = proxy(mode)
    through = Proxy(address=between.address)
    shop = networks("shop", limits=replace(QUICK, deadline_s=1.0, wait_s=2.5 if mode == "hang" else 1.0), proxy=through)
    address = f"127.0.0.1:{free_port()}"
    error = error_of(shop.connect, {"bank": address})
    assert isinstance(error, PeerLost)
    assert f"bank at {address}: the proxy at {between.address} {said}" in str(error)
    assert str(error).isprintable()
    if mode != "hang":  # it has another timeout
        assert f"the proxy at {between.address} {said}" in probe(identity("shop"), "bank", address, proxy=through)


@pytest.mark.parametrize(
    "interim", [b"", b"HTTP/1.1 100\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 103 x\r\na: b\r\n\r\n"]
)
@pytest.mark.parametrize(
    ("final", "error"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", None),
        (b"HTTP/1.1 403\r\n\r\n", ProxyRefused),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", LinkBroken),
        (b"HTTP/1.1 100", LinkBroken),
        (b"rubbish", LinkBroken),
    ],
)
def test_interim_answers_are_passed_over_wherever_they_are_cut(interim, final, error):
    answer, through = interim + final, Proxy(address="proxy.example:3128")
    whole = [is_whole(answer[:cut]) for cut in range(len(answer))]
    assert not any(whole[: len(interim) + 6])
    assert is_whole(answer) == (final != b"HTTP/1.1 100")
    if error is None:
        check_answer(answer, through)
    else:
        with pytest.raises(LinkBroken) as raised:
            check_answer(answer, through)
        assert type(raised.value) is error


def test_a_proxy_that_is_not_there_is_named(networks):
    nowhere = f"127.0.0.1:{free_port()}"
    shop = networks("shop", limits=replace(QUICK, wait_s=1.0), proxy=Proxy(address=nowhere))
    error = error_of(shop.connect, {"bank": "127.0.0.1:7443"})
    assert f"bank at 127.0.0.1:7443: the proxy at {nowhere}: Connection refused" in str(error)


def test_credentials_are_one_line_and_shown_nowhere():
    held = checked_proxy("proxy:3128", credentials=SECRET)
    assert held.credentials == SECRET
    assert "carol" not in repr(held)
    for content in ("no-colon", "two:lines\nof:it", "", "bell:\x07"):
        with pytest.raises(ConfigError, match=r"proxy.credentials: must hold one line, user:password") as caught:
            checked_proxy("proxy:3128", credentials=content)
        assert not content or content not in str(caught.value)


@pytest.mark.long
def test_a_job_goes_through_the_proxy_of_the_party_file(lay_out_job, proxy):
    between = proxy("open", SECRET)
    job = lay_out_job(training__epochs=1, rows=200)
    (job.home("shop") / "proxy.txt").write_text(SECRET)
    job.change("shop", proxy={"address": between.address, "credentials": "proxy.txt"})
    running = job.run_all()
    assert between.said[0].startswith("CONNECT 127.0.0.1:")
    assert "TLS" in between.said  # the label party may have started later
    written = [path.read_bytes() for path in job.home("shop").rglob("*") if path.is_file() and path.name != "proxy.txt"]
    assert not any(b"s3cret" in content for content in written)
    assert not any("s3cret" in line for party in running.values() for line in [*party.said, party.out, str(party.events)])
