"""Sessions over real TLS with trouble: identities, strangers, broken connections, silence, restarts."""

import base64
import contextlib
import datetime
import math
import re
import socket
import ssl
import struct
import tempfile
import threading
import time
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tiny import QUICK, error_of, within

from tallystick.errors import ConfigError, IdentityError, PeerError, PeerLost, PeerStopped, ProtocolError
from tallystick.network import session as sessions
from tallystick.network.addresses import free_port
from tallystick.network.certificates import ALPN, load_identity, tls_context, write_test_certificates
from tallystick.network.endpoint import Endpoint
from tallystick.network.messages import MEBIBYTE
from tallystick.network.session import Limits

from .wire import Note, hung_up


def connected(networks, pool, *, through=lambda port: port, limits=QUICK):
    """Return two networks with a session: (bank's network, shop's network, session at bank, session at shop)."""
    bank = networks("bank", listen="127.0.0.1:0", limits=limits)
    shop = networks("shop", limits=limits)
    waiting = pool.submit(bank.connect, {"shop": None})
    at_shop = shop.connect({"bank": f"127.0.0.1:{through(bank.port)}"})["bank"]
    return bank, shop, waiting.result()["shop"], at_shop


def test_a_peer_that_is_there_and_answers_nothing_is_given_up_and_told(networks, pool):
    """Its heartbeats go on, so without a deadline this side would wait for ever."""
    _, _, at_bank, at_shop = connected(networks, pool)
    began = time.monotonic()
    error = error_of(lambda: at_bank.receive(Note, within_s=2.5))
    assert isinstance(error, PeerLost)
    assert str(error) == "shop is there, and sent no Note for 2.5 s"
    assert time.monotonic() - began >= 2.5
    assert isinstance(error_of(at_bank.check), PeerLost)  # anybody else who speaks over this session
    assert isinstance(error_of(lambda: at_shop.receive(Note)), PeerStopped)


@pytest.mark.parametrize("before_s", [None, 60.0, 1.0, 0.2], ids="{}".format)
def test_a_wait_ends_on_time_whichever_wait_came_before(before_s, networks, pool):
    """Waits share one alarm, which an answer does not cancel: neither an earlier nor a later one may move the next wait's end."""
    _, _, at_bank, at_shop = connected(networks, pool)
    if before_s is not None:
        waiting = pool.submit(at_bank.receive, Note, within_s=before_s)
        time.sleep(0.1)
        at_shop.send(Note(number=1))
        assert waiting.result(10).number == 1
    began = time.monotonic()
    error = error_of(lambda: at_bank.receive(Note, within_s=0.6))
    assert str(error) == "shop is there, and sent no Note for 0.6 s"
    assert 0.6 <= time.monotonic() - began < 5  # far below the longest wait before, however busy the machine


@pytest.mark.parametrize("bound", [{}, {"within_s": 60.0}], ids=["for ever", "with a bound"])
def test_a_peer_that_is_there_and_sends_nothing_is_named_while_this_side_waits(bound, networks, pool, monkeypatch):
    """It may compute for long: the wait goes on, and people can ask. A wait that is usually long is not mentioned."""
    monkeypatch.setattr(sessions, "QUIET_S", 0.2)
    bank, shop, lines = networks("bank", listen="127.0.0.1:0"), networks("shop"), []
    waiting = pool.submit(bank.connect, {"shop": None}, notice=lines.append)
    at_shop = shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"]
    at_bank = waiting.result()["shop"]
    idle = pool.submit(at_bank.receive, Note, within_s=math.inf)
    time.sleep(0.6)
    at_shop.send(Note(number=1))
    assert idle.result(10).number == 1
    assert lines == []
    waiting = pool.submit(at_bank.receive, Note, **bound)
    assert within(10, lambda: len(lines) >= 2)
    assert lines[:2] == [
        f"shop is there, and this side has waited {seconds} s for its Note: it computes, or hangs" for seconds in (0.2, 0.4)
    ]
    at_shop.send(Note(number=2))
    assert waiting.result(10).number == 2


@pytest.mark.parametrize("at", ["connect", "receive"])
def test_whoever_waits_is_interrupted_from_another_thread(at, networks, pool):
    if at == "connect":
        bank = networks("bank", listen="127.0.0.1:0")
        waiting = pool.submit(bank.connect, {"shop": None})
    else:
        bank, _, at_bank, _ = connected(networks, pool)
        waiting = pool.submit(at_bank.receive, Note)
    time.sleep(0.3)
    assert not waiting.done()
    bank.interrupt()
    with pytest.raises(KeyboardInterrupt):
        waiting.result(10)


class Proxy:
    """A TCP relay that can cut all connections, refuse new ones for a while, and swallow what passes."""

    def __init__(self, target):
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = True  # to new connections
        self.silent = False
        self._forgotten = set()
        self.relayed = 0
        self._pairs = []
        self._ends = []
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self.open:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
                self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source, sink):
        try:
            while data := source.recv(65536):
                if self.silent or source in self._forgotten:
                    continue
                self.relayed += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            _shut(end)

    def forget(self):
        """Swallow what passes on the present connections, like a firewall whose entry has expired."""
        with self._lock:
            self._forgotten = {end for pair in self._pairs for end in pair}

    def cut(self):
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                # Reset rather than close: bytes in flight are lost.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                _shut(end)
                end.close()

    def close(self):
        self.open = False
        _shut(self._listener)
        self._accepting.join()
        self._listener.close()
        self.cut()
        for end in self._ends:
            end.close()


def _shut(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxies():
    made = []

    def make(target):
        made.append(Proxy(target))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


# Identity


@pytest.mark.parametrize(
    ("name", "start", "end", "message"),
    [
        ("bank", -5, -1, r"expired on \d{4}-\d\d-\d\d"),
        ("bank", 1, 5, "not valid before"),
        ("shop", -1, 1, "issued to shop, not to party 'bank'"),
    ],
)
def test_own_certificate_that_will_not_do(issue, tmp_path, name, start, end, message):
    issue(tmp_path, name, start=start, end=end)
    with pytest.raises(ConfigError, match=message):
        load_identity("bank", ca=tmp_path / "ca.pem", certificate=tmp_path / f"{name}.pem", key=tmp_path / f"{name}.key")


def test_a_private_key_that_others_can_read_is_warned_of(tmp_path):
    write_test_certificates(tmp_path, ["bank"])
    own = {"ca": tmp_path / "ca.pem", "certificate": tmp_path / "bank.pem", "key": tmp_path / "bank.key"}
    assert load_identity("bank", **own).warning is None
    own["key"].chmod(0o640)
    warning = load_identity("bank", **own).warning
    assert (
        warning == f"tls.key = {own['key']}: others on this machine can read this private key (mode 0640); chmod 600 {own['key']}"
    )
    own["key"].unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*bank.key: No such file"):
        load_identity("bank", **own)


def test_the_private_key_is_copied_nowhere(certificates, monkeypatch, tmp_path):
    """TLS gets the key even if no temporary file can be made, and no copy in memory has a name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    own = {"ca": certificates / "ca.pem", "certificate": certificates / "bank.pem", "key": certificates / "bank.key"}
    identity = load_identity("bank", **own)
    tls_context(identity, listens=True)
    assert identity.key == own["key"]


@pytest.mark.parametrize("name", ["bank.pem", "bank.key"])
def test_a_file_that_only_tls_does_not_take_is_refused_when_it_is_read(tmp_path, name):
    """Without line breaks cryptography still reads it, and OpenSSL does not. check must refuse what the run would."""
    write_test_certificates(tmp_path, ["bank"])
    path = tmp_path / name
    path.write_bytes(path.read_bytes().replace(b"\n", b" "))
    with pytest.raises(ConfigError, match=r"tls.certificate = .*bank.pem, tls.key = .*bank.key: TLS does not take the two"):
        load_identity("bank", ca=tmp_path / "ca.pem", certificate=tmp_path / "bank.pem", key=tmp_path / "bank.key")


@pytest.mark.parametrize(("name", "words"), [("bank.key", "of a kind that TLS knows"), ("ca.pem", "not issued by the CA in")])
def test_a_key_of_a_kind_that_nobody_knows_is_refused(tmp_path, name, words):
    """One flipped bit in the name of its curve does this."""
    write_test_certificates(tmp_path, ["bank"])
    path = tmp_path / name
    head, *body, foot = path.read_text().splitlines()
    curve, other = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d037107")
    der = base64.b64decode("".join(body))
    assert curve in der
    path.write_text(f"{head}\n{base64.encodebytes(der.replace(curve, other)).decode()}{foot}\n")
    with pytest.raises(ConfigError, match=words):
        load_identity("bank", ca=tmp_path / "ca.pem", certificate=tmp_path / "bank.pem", key=tmp_path / "bank.key")


def test_own_certificate_of_another_ca_or_with_another_key(certificates, tmp_path):
    write_test_certificates(tmp_path, ["bank"])
    own = {"certificate": certificates / "bank.pem", "key": certificates / "bank.key"}
    with pytest.raises(ConfigError, match="not issued by the CA in"):
        load_identity("bank", ca=tmp_path / "ca.pem", **own)
    with pytest.raises(ConfigError, match="does not belong to"):
        load_identity("bank", ca=certificates / "ca.pem", certificate=certificates / "bank.pem", key=tmp_path / "bank.key")
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.pem: No such file"):
        load_identity("bank", ca=tmp_path / "nowhere.pem", **own)
    with pytest.raises(ConfigError, match="not a PEM private key"):
        load_identity("bank", ca=certificates / "ca.pem", certificate=certificates / "bank.pem", key=certificates / "ca.pem")
    with pytest.raises(ConfigError, match="exists already"):
        write_test_certificates(tmp_path, ["bank"])


def dial(networks, pool, *, caller, at, listener):
    """Let a caller dial a listener, which goes on waiting for its peer. Return the caller's error."""
    bank = networks("bank", listen="127.0.0.1:0", who=listener, limits=replace(QUICK, wait_s=60))
    shop = networks("shop", who=caller, limits=replace(QUICK, wait_s=3))
    waiting = pool.submit(error_of, bank.connect, {"shop": None})
    error = error_of(shop.connect, {at: f"127.0.0.1:{bank.port}"})
    shop.close()
    assert not waiting.done()
    bank.interrupt()
    with pytest.raises(KeyboardInterrupt):
        waiting.result(timeout=20)
    return error


def test_the_listeners_certificate_is_expired(networks, pool, issue, identity, tmp_path):
    # Checked when it is loaded; this tests that the caller checks it, too.
    ca_key = issue(tmp_path, "bank", start=-5, end=-1)
    issue(tmp_path, "shop", ca_key=ca_key)
    expired = replace(identity("bank"), **pem(tmp_path, "bank"))
    caller = replace(identity("shop"), **pem(tmp_path, "shop"))
    error = dial(networks, pool, caller=caller, at="bank", listener=expired)
    assert isinstance(error, IdentityError)
    assert "its certificate is refused: certificate has expired" in str(error)


def test_the_callers_certificate_is_expired(networks, pool, issue, identity, tmp_path):
    ca_key = issue(tmp_path, "shop", start=-5, end=-1)
    issue(tmp_path, "bank", ca_key=ca_key)
    caller = replace(identity("shop"), **pem(tmp_path, "shop"))
    error = dial(networks, pool, caller=caller, at="bank", listener=replace(identity("bank"), **pem(tmp_path, "bank")))
    assert isinstance(error, PeerLost)
    assert "it may not accept this side's certificate: is it expired, or from a CA that bank does not trust?" in str(error)


def pem(folder, name):
    return {
        "ca": (folder / "ca.pem").read_bytes(),
        "certificate": folder / f"{name}.pem",
        "key": folder / f"{name}.key",
    }


def test_another_ca_of_the_same_name(networks, pool, issue, identity, tmp_path):
    issue(tmp_path, "shop")
    caller = replace(identity("shop"), **pem(tmp_path, "shop"))
    error = dial(networks, pool, caller=caller, at="bank", listener=identity("bank"))
    assert isinstance(error, IdentityError)
    assert "its certificate is refused" in str(error)
    assert "it is not signed by the CA in tls.ca: one CA, or one `tallystick cert`" in str(error)


def test_a_listener_that_does_not_trust_the_callers_ca(networks, pool, issue, identity, tmp_path):
    issue(tmp_path, "shop")
    caller = replace(identity("shop"), **{**pem(tmp_path, "shop"), "ca": identity("shop").ca})
    error = dial(networks, pool, caller=caller, at="bank", listener=identity("bank"))
    assert isinstance(error, PeerLost)
    assert "it may not accept this side's certificate: is it expired, or from a CA that bank does not trust?" in str(error)


def test_a_listener_with_another_name(networks, pool, identity):
    error = dial(networks, pool, caller=identity("shop"), at="club", listener=identity("bank"))
    assert isinstance(error, IdentityError)
    assert "Hostname mismatch" in str(error)


def test_a_caller_who_claims_another_name(networks, pool, identity):
    error = dial(networks, pool, caller=replace(identity("club"), name="shop"), at="bank", listener=identity("bank"))
    assert isinstance(error, IdentityError)
    assert "bank turned this party away: your certificate is for club, not for 'shop'" in str(error)


def test_a_caller_whom_the_contract_does_not_name_waits_in_vain(networks, pool, identity):
    bank = networks("bank", listen="127.0.0.1:0", limits=replace(QUICK, wait_s=60))
    waiting = pool.submit(bank.connect, {"shop": None})
    club = networks("club", limits=replace(QUICK, wait_s=1))
    with pytest.raises(PeerLost, match=r"bank did not come up: nothing heard for 1 s \(bank does not expect 'club' \(yet\)\)"):
        club.connect({"bank": f"127.0.0.1:{bank.port}"})
    bank.interrupt()
    with pytest.raises(KeyboardInterrupt):
        waiting.result(10)


def test_tls_12_is_refused(networks, certificates):
    bank = networks("bank", listen="127.0.0.1:0")
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "shop.pem", certificates / "shop.key")
    context.set_alpn_protocols([ALPN])
    address = ("127.0.0.1", bank.port)
    with socket.create_connection(address, timeout=5) as raw, context.wrap_socket(raw, server_hostname="bank") as tls:
        assert tls.version() == "TLSv1.3"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(address, timeout=5) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(raw, server_hostname="bank")


def test_a_caller_without_a_certificate_is_refused(networks, certificates):
    bank = networks("bank", listen="127.0.0.1:0")
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.set_alpn_protocols([ALPN])
    address = ("127.0.0.1", bank.port)
    with socket.create_connection(address, timeout=5) as raw, context.wrap_socket(raw, server_hostname="bank") as tls:
        # In TLS 1.3 the listener decides after the caller's side of the handshake is done.
        assert hung_up(tls)


# Strangers and absent peers


def test_garbage_from_a_stranger_harms_nobody(networks, pool):
    bank, _, at_bank, at_shop = connected(networks, pool)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 100, b"\x16\x03\x01\xff\xff" + bytes(1000)):
        with socket.create_connection(("127.0.0.1", bank.port), timeout=5) as stranger:
            stranger.sendall(noise)
            stranger.settimeout(0.2)
            with contextlib.suppress(OSError):
                stranger.recv(1000)
    at_shop.send(Note(number=7))
    assert at_bank.receive(Note).number == 7


def test_a_listener_that_speaks_no_tls(networks):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def babble():
            while True:
                try:
                    end, _ = listener.accept()
                except OSError:
                    return
                with end:
                    end.sendall(b"220 mail.example.org ESMTP\r\n" * 10)

        threading.Thread(target=babble, daemon=True).start()
        shop = networks("shop", limits=replace(QUICK, wait_s=1.5))
        began = time.monotonic()
        with pytest.raises(PeerLost, match="bank did not come up") as caught:
            shop.connect({"bank": f"127.0.0.1:{port}"})
        assert time.monotonic() - began < 10
        assert "(" in str(caught.value)  # the reason, in the words of the last one who tried
        listener.shutdown(socket.SHUT_RDWR)


def test_a_port_that_is_taken(networks, identity):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"listen = 127.0.0.1:{port}: cannot listen there"):
            Endpoint(identity("bank"), limits=QUICK, listen=f"127.0.0.1:{port}")
    first = networks("bank", listen="127.0.0.1:0")
    with pytest.raises(ConfigError, match="is the port taken"):
        Endpoint(identity("bank"), limits=QUICK, listen=f"127.0.0.1:{first.port}")


def test_waits_for_a_peer_that_comes_up_later(networks, pool):
    port = free_port()
    shop = networks("shop")
    told = []
    waiting = pool.submit(shop.connect, {"bank": f"127.0.0.1:{port}"}, waiting=told.append)
    time.sleep(1.5)
    bank = networks("bank", listen=f"127.0.0.1:{port}")
    at_bank = bank.connect({"shop": None})["shop"]
    at_bank.send(Note(number=1))
    assert waiting.result()["bank"].receive(Note).number == 1
    assert told[0] == ["bank"]


@pytest.mark.parametrize("dials", [True, False])
def test_gives_up_on_a_peer_that_never_comes_up(networks, dials):
    limits = replace(QUICK, wait_s=1.0)
    network = networks("shop", limits=limits) if dials else networks("bank", limits=limits, listen="127.0.0.1:0")
    began = time.monotonic()
    with pytest.raises(PeerLost, match="did not come up: nothing heard for 1 s"):
        network.connect({"bank": f"127.0.0.1:{free_port()}"} if dials else {"shop": None})
    assert 0.9 < time.monotonic() - began < 4


def test_waiting_for_one_peer_notices_the_end_of_another(networks, pool):
    bank = networks("bank", listen="127.0.0.1:0", limits=replace(QUICK, wait_s=30))
    waiting = pool.submit(bank.connect, {"shop": None, "club": None})
    shop = networks("shop")
    shop.connect({"bank": f"127.0.0.1:{bank.port}"})
    shop.close("shop has changed its mind")
    with pytest.raises(PeerStopped, match="shop has changed its mind") as stopped:
        waiting.result(timeout=5)
    assert not stopped.value.final


# In the middle of a run


def test_a_message_over_the_limit_is_not_sent(networks, pool):
    _, _, at_bank, at_shop = connected(networks, pool, limits=replace(QUICK, max_message_bytes=MEBIBYTE))
    with pytest.raises(ConfigError, match=r"Note of \d+ bytes is over the contract's network.max_message_mib"):
        at_shop.send(Note(number=1, ballast=bytes(2 * MEBIBYTE)))
    at_shop.send(Note(number=2))
    assert at_bank.receive(Note).number == 2


@pytest.mark.parametrize("greedy", ["shop", "bank"])
def test_a_message_over_the_peers_limit_ends_both_sides(networks, pool, greedy):
    """The two sides hold different contracts, or one is hostile: the other must not accept the message."""
    generous = replace(QUICK, max_message_bytes=8 * MEBIBYTE)
    strict = replace(QUICK, max_message_bytes=MEBIBYTE)
    bank = networks("bank", listen="127.0.0.1:0", limits=generous if greedy == "bank" else strict)
    shop = networks("shop", limits=generous if greedy == "shop" else strict)
    waiting = pool.submit(bank.connect, {"shop": None})
    at_shop = shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"]
    at_bank = waiting.result()["shop"]
    sender, receiver = (at_shop, at_bank) if greedy == "shop" else (at_bank, at_shop)
    began = time.monotonic()
    sender.send(Note(number=1, ballast=bytes(4 * MEBIBYTE)))
    ends = [pool.submit(error_of, session.receive, Note) for session in (sender, receiver)]
    for end in ends:
        assert isinstance(end.result(timeout=10), PeerError)
    assert time.monotonic() - began < 8
    assert not receiver._inbox


def test_broken_connections_are_ridden_out(networks, pool, proxies):
    """Nothing is lost or doubled while a relay cuts the connection five times within a transfer, once for a second."""
    relay = {}

    def through(port):
        relay["proxy"] = proxies(port)
        return relay["proxy"].port

    limits = replace(QUICK, deadline_s=8)
    _, _, at_bank, at_shop = connected(networks, pool, through=through, limits=limits)
    proxy, count = relay["proxy"], 200
    ballast = bytes(100_000)

    def one(session, delay):
        got = []
        for number in range(count):
            session.send(Note(number=number, ballast=ballast))
            got.append(session.receive(Note).number)
            time.sleep(delay)
        return got

    both = [pool.submit(one, session, 0.005) for session in (at_bank, at_shop)]
    for turn in range(5):
        before = proxy.relayed
        assert within(20, lambda before=before: proxy.relayed > before + 3_000_000 or all(end.done() for end in both))
        proxy.open = turn != 2
        proxy.cut()
        if turn == 2:
            time.sleep(1.0)
            proxy.open = True
    for end in both:
        assert end.result(timeout=40) == list(range(count))
    assert at_bank.traffic.messages_received == at_shop.traffic.messages_received == count


def test_a_cut_while_one_side_pours_a_window_ahead(networks, pool, proxies):
    relay = {}

    def through(port):
        relay["proxy"] = proxies(port)
        return relay["proxy"].port

    _, _, at_bank, at_shop = connected(networks, pool, through=through, limits=replace(QUICK, deadline_s=8))

    def pour():
        for number in range(60):
            at_shop.send(Note(number=number, ballast=bytes(2 * MEBIBYTE)))

    pouring = pool.submit(pour)
    got = []
    for number in range(60):
        got.append(at_bank.receive(Note).number)
        if number in (10, 30):
            relay["proxy"].cut()
    pouring.result(timeout=20)
    assert got == list(range(60))


def test_silence_is_a_lost_peer_after_the_deadline(networks, pool, proxies):
    """The line accepts bytes and delivers nothing, as when the peer is stopped or a firewall drops packets."""
    relay = {}

    def through(port):
        relay["proxy"] = proxies(port)
        return relay["proxy"].port

    _, _, at_bank, at_shop = connected(networks, pool, through=through)
    time.sleep(2 * QUICK.deadline_s)  # idle, except for heartbeats
    at_shop.check()
    at_bank.check()
    relay["proxy"].silent = True
    began = time.monotonic()
    ends = [pool.submit(error_of, session.receive, Note) for session in (at_bank, at_shop)]
    for end in ends:
        error = end.result(timeout=10)
        assert isinstance(error, PeerLost)
        assert "fell silent: nothing heard for 1.5 s" in str(error)
    assert QUICK.deadline_s - QUICK.heartbeat_s - 0.3 < time.monotonic() - began < QUICK.deadline_s + 3


def test_a_connection_that_a_firewall_forgot_is_dialled_anew_before_the_deadline(networks, pool, proxies):
    relay = {}

    def through(port):
        relay["proxy"] = proxies(port)
        return relay["proxy"].port

    _, _, at_bank, at_shop = connected(networks, pool, through=through, limits=replace(QUICK, deadline_s=4))
    for number in range(2):
        relay["proxy"].forget()
        began = time.monotonic()
        at_shop.send(Note(number=number))
        at_bank.send(Note(number=number + 10))
        assert at_bank.receive(Note).number == number
        assert at_shop.receive(Note).number == number + 10
        assert 1 < time.monotonic() - began < 4


def test_who_answers_a_redial_in_the_peers_place_is_a_stranger_and_the_job_goes_on(networks, pool, proxies):
    """The address leads to another party's listener for a while, then back. Nothing is said to it, and nothing is lost."""
    bank, club = (networks(name, listen="127.0.0.1:0", limits=replace(QUICK, deadline_s=6)) for name in ("bank", "club"))
    shop, relay, noted = networks("shop", limits=replace(QUICK, deadline_s=6)), proxies(bank.port), []
    waiting = pool.submit(bank.connect, {"shop": None})
    at_shop = shop.connect({"bank": f"127.0.0.1:{relay.port}"}, notice=noted.append)["bank"]
    at_bank = waiting.result()["shop"]
    relay.target = club.port
    relay.cut()
    at_shop.send(Note(number=1))
    receiving = pool.submit(at_bank.receive, Note)
    assert within(5, lambda: len(noted) > 1)
    broke, line = noted
    assert broke.startswith("the connection to bank broke: ")
    assert line.startswith(f"who answers there is not bank: bank at 127.0.0.1:{relay.port}: ")
    assert "Hostname mismatch" in line
    relay.target = bank.port
    at_shop.send(Note(number=2))
    assert [receiving.result(timeout=10).number, at_bank.receive(Note).number] == [1, 2]
    assert len(noted) == 2


def test_a_stranger_in_the_peers_place_is_named_when_the_deadline_is_over(networks, pool, proxies):
    relay = {}

    def through(port):
        relay["proxy"] = proxies(port)
        return relay["proxy"].port

    _, _, _, at_shop = connected(networks, pool, through=through)
    relay["proxy"].target = networks("club", listen="127.0.0.1:0").port
    relay["proxy"].cut()
    error = error_of(at_shop.receive, Note)
    assert isinstance(error, PeerLost)
    assert "bank fell silent: nothing heard for 1.5 s" in str(error)
    assert "who answers there is not bank" in str(error)


def test_a_busy_thread_is_no_lost_peer_and_hears_of_the_peers_end(networks, pool):
    _, shop, at_bank, at_shop = connected(networks, pool)
    busy = pool.submit(spin_for, 1.5 * QUICK.deadline_s)
    at_bank_waits = pool.submit(at_bank.receive, Note)
    busy.result()
    at_shop.send(Note(number=1))
    assert at_bank_waits.result(timeout=5).number == 1
    shop.close("shop is done for", final=True)
    assert within(3, lambda: failed(at_bank.check))
    with pytest.raises(PeerStopped, match="shop is done for") as stopped:
        at_bank.send(Note(number=2))
    assert stopped.value.final


def spin_for(seconds):
    until = time.monotonic() + seconds
    total = 0
    while time.monotonic() < until:
        total += sum(range(1000))
    return total


def failed(check):
    try:
        check()
    except PeerError:
        return True
    return False


def test_a_restarted_peer_is_another_session(networks, pool, identity):
    bank, shop, at_bank, _ = connected(networks, pool)
    # The first process dies silently; the operator starts a second one at once.
    for task in list(shop._loop._tasks):
        shop._loop._loop.call_soon_threadsafe(task.cancel)
    second = networks("shop", limits=replace(QUICK, wait_s=2))
    dialling = pool.submit(error_of, second.connect, {"bank": f"127.0.0.1:{bank.port}"})
    with pytest.raises(PeerLost, match="shop was restarted in the middle of the run"):
        at_bank.receive(Note)
    dialling.result(timeout=10)


def test_two_processes_with_one_certificate_end_the_run_and_the_line_says_so(networks, pool):
    """Somebody started a party twice, and nobody can tell which process is meant."""
    bank, _, at_bank, at_shop = connected(networks, pool)
    second = networks("shop", limits=replace(QUICK, wait_s=1))
    dialling = pool.submit(error_of, second.connect, {"bank": f"127.0.0.1:{bank.port}"})
    with pytest.raises(PeerLost, match="or runs twice: a second process calls with its certificate"):
        at_bank.receive(Note)
    bank.close("the run is over")
    assert isinstance(error_of(at_shop.receive, Note), PeerError)
    assert isinstance(dialling.result(timeout=10), PeerLost)


def test_another_wire_version(networks, pool, monkeypatch):
    bank = networks("bank", listen="127.0.0.1:0")
    shop = networks("shop")
    hello = sessions.Session.hello

    def from_the_future(self):
        said = hello(self)
        return replace_version(said) if said.party == "shop" else said

    monkeypatch.setattr(sessions.Session, "hello", from_the_future)
    waiting = pool.submit(error_of, bank.connect, {"shop": None})
    with pytest.raises(ProtocolError, match="speaks version 99, not 1; install the same version on both sides"):
        shop.connect({"bank": f"127.0.0.1:{bank.port}"})
    assert "speaks version 99" in str(waiting.result(timeout=5))


def replace_version(said):
    return sessions.Hello(
        wire_version=99,
        party=said.party,
        process=said.process,
        peer_process=said.peer_process,
        received=said.received,
    )


def test_close_in_peace_delivers_everything(networks, pool):
    bank, shop, at_bank, at_shop = connected(networks, pool)
    for number in range(50):
        at_shop.send(Note(number=number, ballast=bytes(100_000)))
    closing = pool.submit(shop.close)
    assert [at_bank.receive(Note).number for _ in range(50)] == list(range(50))
    with pytest.raises(ProtocolError, match="shop ended its side while this side waits for it to send a Note"):
        at_bank.receive(Note)
    bank.close()
    closing.result(timeout=5)


@pytest.mark.parametrize("later", [None, "bank", "shop"])
def test_close_in_peace_is_quick_on_both_sides(networks, pool, later):
    limits = Limits(heartbeat_s=5, deadline_s=20, wait_s=10)
    bank, shop, at_bank, at_shop = connected(networks, pool, limits=limits)
    at_shop.send(Note(number=1))
    assert at_bank.receive(Note).number == 1

    def close(network):
        if later is not None and network.identity.name == later:
            time.sleep(0.3)
        began = time.monotonic()
        network.close()
        return time.monotonic() - began

    # Neither waits for the other's next heartbeat, nor for one that has left.
    assert max(pool.map(close, (bank, shop))) < 3


def test_close_is_not_kept_waiting_by_a_dead_peer(networks, pool, proxies):
    relay = {}

    def through(port):
        relay["proxy"] = proxies(port)
        return relay["proxy"].port

    bank, _, at_bank, _ = connected(networks, pool, through=through, limits=Limits(heartbeat_s=1, deadline_s=60, wait_s=10))
    relay["proxy"].silent = True
    at_bank.send(Note(number=1))
    began = time.monotonic()
    bank.close("bank has to stop")
    assert time.monotonic() - began < 4


def test_a_silent_peer_keeps_no_other_from_hearing_the_reason(networks, pool, proxies):
    limits = Limits(heartbeat_s=1, deadline_s=60, wait_s=10)
    bank = networks("bank", listen="127.0.0.1:0", limits=limits)
    relay = proxies(bank.port)
    shop, club = networks("shop", limits=limits), networks("club", limits=limits)
    waiting = pool.submit(bank.connect, {"shop": None, "club": None})
    shop.connect({"bank": f"127.0.0.1:{relay.port}"})
    at_club = club.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"]
    waiting.result()
    relay.silent = True
    hearing = pool.submit(error_of, at_club.receive, Note)
    closing = pool.submit(bank.close, "bank has to stop")
    assert "bank has to stop" in str(hearing.result())
    assert not closing.done()  # bank still waits for shop, 2 s in all
    closing.result()


def test_peers_may_be_told_different_reasons(networks, pool):
    bank, shop, club = networks("bank", listen="127.0.0.1:0"), networks("shop"), networks("club")
    waiting = pool.submit(bank.connect, {"shop": None, "club": None})
    ends = {
        each: network.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"] for each, network in (("shop", shop), ("club", club))
    }
    waiting.result()
    hearing = {each: pool.submit(error_of, end.receive, Note) for each, end in ends.items()}
    bank.close(lambda peer: f"a word for {peer}")
    for each, heard in hearing.items():
        assert f"a word for {each}" in str(heard.result())


@pytest.mark.parametrize("wild", ["*", "b*", "*ank", "*.bank", "bank.*", "*.example.com"])
def test_a_name_with_a_star_stands_for_no_party(networks, pool, issue, identity, tmp_path, wild):
    """A matching wildcard would make every holder of such a certificate each party of the contract."""
    ca_key = issue(tmp_path, wild)
    for name in ("bank", "shop"):
        issue(tmp_path, name, ca_key=ca_key)
    of_wild, of_bank, of_shop = (replace(identity("bank"), **pem(tmp_path, name)) for name in (wild, "bank", "shop"))
    files = {"certificate": tmp_path / f"{wild}.pem", "key": tmp_path / f"{wild}.key"}
    with pytest.raises(ConfigError, match=re.escape(f"issued to {wild}, not to party 'bank'")):
        load_identity("bank", ca=tmp_path / "ca.pem", **files)
    error = dial(networks, pool, caller=replace(of_shop, name="shop"), at="bank", listener=of_wild)
    assert isinstance(error, IdentityError)
    assert "Hostname mismatch" in str(error)
    error = dial(networks, pool, caller=replace(of_wild, name="shop"), at="bank", listener=of_bank)
    assert isinstance(error, IdentityError)
    assert f"bank turned this party away: your certificate is for {wild}, not for 'shop'" in str(error)


@pytest.mark.parametrize("names", [["bank", "*.bank.example"], ["a.example", "bank"]])
def test_a_certificate_of_several_names_is_the_party_s_that_stands_among_them(networks, pool, certificates, tmp_path, names):
    """A company's CA may add names of machines."""
    ca = x509.load_pem_x509_certificate((certificates / "ca.pem").read_bytes())
    ca_key = serialization.load_pem_private_key((certificates / "ca.key").read_bytes(), None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    own = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "host 7")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (tmp_path / "bank.pem").write_bytes(own.public_bytes(encoding))
    (tmp_path / "bank.key").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    who = load_identity("bank", ca=certificates / "ca.pem", certificate=tmp_path / "bank.pem", key=tmp_path / "bank.key")
    bank, shop = networks("bank", listen="127.0.0.1:0", who=who), networks("shop")
    waiting = pool.submit(bank.connect, {"shop": None})
    shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"].send(Note(number=3))
    assert waiting.result(10)["shop"].receive(Note).number == 3
