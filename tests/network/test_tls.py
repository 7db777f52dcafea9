"""Links: a listener among strangers, a server that is not ours, keys that wear out."""

import contextlib
import datetime
import socket
import ssl
import struct
import threading
import time
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from tiny import QUICK, error_of, within

from tallystick.errors import ConfigError, PeerError, PeerLost
from tallystick.network import session as sessions
from tallystick.network import tls
from tallystick.network.certificates import ALPN, probe, tls_context
from tallystick.network.messages import MEBIBYTE, WIRE_VERSION, Stopped, encode_parts
from tallystick.network.session import BYE, DATA, HEADER, HEARTBEAT, HELLO, REFUSAL, Hello, first_frame

from .wire import Note, hung_up


def connect(bank, shop, pool, address=None):
    waiting = pool.submit(bank.connect, {"shop": None})
    at_shop = shop.connect({"bank": address or f"127.0.0.1:{bank.port}"})["bank"]
    return waiting.result()["shop"], at_shop


def test_keys_that_wear_out_are_renewed_and_nothing_is_lost(networks, pool, monkeypatch, links):
    monkeypatch.setattr(tls, "RENEW_BYTES", 5 * MEBIBYTE)
    at_bank, at_shop = connect(networks("bank", listen="127.0.0.1:0"), networks("shop"), pool)
    pouring = pool.submit(lambda: [at_shop.send(Note(number=number, ballast=bytes(MEBIBYTE))) for number in range(24)])
    assert [at_bank.receive(Note).number for _ in range(24)] == list(range(24))
    pouring.result()
    assert len(links) >= 2 * (24 // 6)  # two ends each


def test_many_strangers_who_say_nothing_keep_nobody_out(networks, pool):
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    strangers = [socket.create_connection(("127.0.0.1", bank.port)) for _ in range(2 * tls.STRANGERS)]
    try:
        at_bank, at_shop = connect(bank, shop, pool)
        at_shop.send(Note(number=1))
        assert at_bank.receive(Note).number == 1
    finally:
        for stranger in strangers:
            stranger.close()


def test_strangers_who_hang_up_at_once_harm_nobody(networks, pool):
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    at_bank, at_shop = connect(bank, shop, pool)
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", bank.port)) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    at_shop.send(Note(number=1))
    assert at_bank.receive(Note).number == 1


def test_a_first_frame_that_is_too_large_for_a_hello_is_not_waited_for(networks, pool, certificates):
    """The caller holds a certificate of the CA, and announces the greatest possible frame."""
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    at_bank, at_shop = connect(bank, shop, pool)
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "club.pem", certificates / "club.key")
    context.set_alpn_protocols([ALPN])
    with (
        socket.create_connection(("127.0.0.1", bank.port), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="bank") as caller,
    ):
        began = time.monotonic()
        caller.sendall(struct.pack("<I", tls.HELLO_BYTES + 1) + bytes(100))
        assert hung_up(caller)
        assert time.monotonic() - began < QUICK.deadline_s / 2  # not because the rest is missing
    at_shop.send(Note(number=1))
    assert at_bank.receive(Note).number == 1


@pytest.mark.parametrize("protocols", [[], ["h2"]])
def test_a_server_with_the_right_certificate_that_is_no_tallystick_is_named(networks, certificates, identity, protocols):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "bank.pem", certificates / "bank.key")
    if protocols:
        context.set_alpn_protocols(protocols)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    raw, _ = listener.accept()
                    with raw, contextlib.suppress(OSError), context.wrap_socket(raw, server_side=True) as end:
                        end.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        shop = networks("shop", limits=replace(QUICK, wait_s=1.5))
        error = error_of(shop.connect, {"bank": address})
        trouble = probe(identity("shop"), "bank", address)
        listener.shutdown(socket.SHUT_RDWR)
    assert isinstance(error, PeerLost)
    said = f"bank at {address}: does not speak {ALPN} after the TLS handshake; is this the address on which bank listens?"
    assert said in str(error)
    assert trouble == said


def test_over_ipv6(networks, pool):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    for listen in ("[::1]:0", "[::]:0", "localhost:0"):
        bank, shop = networks("bank", listen=listen), networks("shop")
        at_bank, at_shop = connect(bank, shop, pool, f"{listen[:-2]}:{bank.port}".replace("[::]", "[::1]"))
        at_shop.send(Note(number=1))
        assert at_bank.receive(Note).number == 1


def issued_by_one_between(folder, parties, *, sent=True, days=10):
    """Make a root, an intermediate CA, and parties' certificates of it, each followed by that CA's in the file that is sent."""
    now = datetime.datetime.now(datetime.UTC)
    pem, keys = serialization.Encoding.PEM, {}

    def certificate(name, issuer, *, ca=False, days=10):
        keys[name] = ec.generate_private_key(ec.SECP256R1())
        subject, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(keys[name].public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=20))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
        if not ca:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(keys[issuer], hashes.SHA256()).public_bytes(pem)

    (folder / "ca.pem").write_bytes(certificate("root", "root", ca=True))
    between = certificate("between", "root", ca=True, days=days)
    for name in parties:
        (folder / f"{name}.pem").write_bytes(certificate(name, "between") + (between if sent else b""))
        (folder / f"{name}.key").write_bytes(
            keys[name].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )


def test_a_ca_between_whose_certificate_follows_in_the_file_is_taken(networks, pool, identity, tmp_path):
    issued_by_one_between(tmp_path, ["bank", "shop"])
    bank = networks("bank", who=identity("bank", tmp_path), listen="127.0.0.1:0")
    shop = networks("shop", who=identity("shop", tmp_path))
    waiting = pool.submit(bank.connect, {"shop": None})
    shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"].send(Note(number=7))
    assert waiting.result(10)["shop"].receive(Note).number == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [({"sent": False}, "one between whose certificate follows"), ({"days": -1}, "of CN=between, expired on")],
)
def test_a_ca_between_that_is_left_out_or_has_expired_is_named(options, words, identity, tmp_path):
    issued_by_one_between(tmp_path, ["bank"], **options)
    with pytest.raises(ConfigError, match=words):
        identity("bank", tmp_path)


def test_a_host_name_that_nobody_knows(networks):
    shop = networks("shop", limits=replace(QUICK, wait_s=1.5))
    began = time.monotonic()
    with pytest.raises(PeerLost, match=r"bank did not come up.*nowhere\.invalid:7443"):
        shop.connect({"bank": "nowhere.invalid:7443"})
    assert time.monotonic() - began < 15


def test_a_half_sent_frame_goes_on_while_its_sender_computes(networks, pool):
    """Send a message that fills every buffer on the way, from a thread that does not come back to the network."""
    at_bank, at_shop = connect(networks("bank", listen="127.0.0.1:0"), networks("shop"), pool)
    at_shop.send(Note(number=1, ballast=bytes(30 * MEBIBYTE)))
    assert len(at_bank.receive(Note).ballast) == 30 * MEBIBYTE


# A caller who holds a certificate and means harm


@pytest.fixture
def hostile(networks, pool, certificates):
    """Open a session between a bank and a shop that is this test. Return the bank's session and a function that sends frames."""
    made = []

    def begin(limits=QUICK, *, received=0):
        bank = networks("bank", listen="127.0.0.1:0", limits=limits)
        waiting = pool.submit(bank.connect, {"shop": None})
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        context.load_cert_chain(certificates / "shop.pem", certificates / "shop.key")
        context.set_alpn_protocols([ALPN])
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # it reads little of what it is told
        raw.settimeout(20)
        raw.connect(("127.0.0.1", bank.port))
        wire = context.wrap_socket(raw, server_hostname="bank")
        made.append(wire)

        def put(parts):
            frame = b"".join(parts)
            wire.sendall(struct.pack("<I", len(frame)) + frame)

        put(
            first_frame(
                HELLO, Hello(wire_version=WIRE_VERSION, party="shop", process=bytes(16), peer_process=b"", received=received)
            )
        )
        if received == 0:
            waiting.result()
        else:
            assert isinstance(error_of(waiting.result), PeerError)
        return bank, bank._sessions["shop"], wire, put

    yield begin
    for wire in made:
        wire.close()


def test_who_sends_records_of_one_byte_keeps_nobody_from_the_loop(hostile, pool):
    bank, _, wire, _ = hostile(replace(QUICK, deadline_s=10))
    wire.sendall(struct.pack("<I", 20 * MEBIBYTE))
    enough = threading.Event()

    def flood():
        while not enough.is_set():
            for _ in range(100):
                wire.send(b"x")

    flooding = pool.submit(flood)
    time.sleep(0.5)
    for _ in range(10):
        time.sleep(0.05)
        began = time.monotonic()
        with bank._loop:
            assert time.monotonic() - began < 2
    enough.set()
    flooding.result()


def test_who_pours_more_than_a_window_ahead_is_cut_off(hostile):
    _, at_bank, _, put = hostile()
    body = bytes(30 * MEBIBYTE)
    with contextlib.suppress(OSError):
        for number in range(1, 9):
            put((HEADER.pack(DATA, number, 0, 0), body))
    assert within(10, lambda: at_bank.failure is not None)
    assert "shop sent more than 67108864 bytes ahead" in str(at_bank.failure)
    assert sum(map(len, at_bank._inbox)) <= sessions.WINDOW_BYTES + QUICK.max_message_bytes


@pytest.mark.parametrize("claim", [(1, 0), (0, 1), (2**63, 2**63)])
def test_who_claims_to_have_what_was_never_sent_is_cut_off(hostile, claim):
    _, at_bank, _, put = hostile()
    put((HEADER.pack(HEARTBEAT, 0, *claim),))
    assert within(5, lambda: at_bank.failure is not None)
    assert "shop claims to have received something that was never sent" in str(at_bank.failure)


def test_small_frames_count_with_what_it_costs_to_keep_them(hostile, monkeypatch):
    monkeypatch.setattr(sessions, "WINDOW_BYTES", 4 * MEBIBYTE)
    _, at_bank, _, put = hostile(replace(QUICK, max_message_bytes=MEBIBYTE))
    with contextlib.suppress(OSError):
        for number in range(1, 10_000):
            put((HEADER.pack(DATA, number, 0, 0), b"x"))
    assert within(10, lambda: at_bank.failure is not None)
    assert "shop sent more than 4194304 bytes ahead" in str(at_bank.failure)
    assert len(at_bank._inbox) < 5 * MEBIBYTE / sessions.FRAME_COST


def test_who_says_goodbye_again_and_again_is_cut_off(hostile):
    """It is told of the first, and does not read it."""
    _, at_bank, _, put = hostile()
    for number in range(1, 2_000):
        put((HEADER.pack(BYE, number, 0, 0),))
    assert within(5, lambda: at_bank.failure is not None)
    assert "shop sent more after its last message" in str(at_bank.failure)
    assert len(at_bank._unsent) <= 1


def test_answers_are_not_queued_for_who_does_not_read_them(hostile):
    """The words of farewell are longer than the buffers on the way can answer."""
    _, at_bank, _, put = hostile(replace(QUICK, deadline_s=20))
    at_bank.link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    stop = encode_parts(Stopped(reason="enough"))
    for number in range(1, 5_001):
        put((HEADER.pack(DATA, number, 0, 0), *stop))
    assert within(15, lambda: at_bank._received == 5_000)
    assert len(at_bank._unsent) <= 1


@pytest.mark.parametrize("received", [1, 2**63])
def test_who_claims_in_its_hello_to_have_what_was_never_sent_is_refused(hostile, pool, received):
    _, at_bank, _, _ = hostile(received=received)
    assert "shop claims to have received" in str(at_bank.failure)


def test_a_hello_that_comes_late_on_a_connection_of_before_harms_no_session(hostile):
    """A line delivers late what an earlier connection carried. Meanwhile the session has gone on over another one."""
    bank, at_bank, wire, put = hostile()
    at_bank.send(Note(number=1))
    put((HEADER.pack(HEARTBEAT, 0, 1, 0),))
    assert within(5, lambda: at_bank._arrived == 1)
    late = Hello(wire_version=WIRE_VERSION, party="shop", process=bytes(16), peer_process=b"", received=0)
    frame = b"".join(first_frame(HELLO, late))
    with (
        socket.create_connection(("127.0.0.1", bank.port), timeout=20) as raw,
        wire.context.wrap_socket(raw, server_hostname="bank") as second,
    ):
        second.sendall(struct.pack("<I", len(frame)) + frame)
        answer = second.recv(1 << 16)
    assert answer[4] == REFUSAL
    put((HEADER.pack(DATA, 1, 1, 0), *encode_parts(Note(number=2))))
    assert at_bank.receive(Note).number == 2


def test_a_stranger_who_is_turned_out_when_its_handshake_ends_harms_nobody(networks, pool, monkeypatch):
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    at_bank, at_shop = connect(bank, shop, pool)
    handshake, out = tls._Link.handshake, []

    async def turned_out(link):
        await handshake(link)
        if not out and link in bank._transport._strangers:
            out.append(link)
            link.close()

    monkeypatch.setattr(tls._Link, "handshake", turned_out)
    shop._loop.later(at_shop.link.close)
    assert within(10, lambda: out)
    at_shop.send(Note(number=1))
    assert at_bank.receive(Note).number == 1


# Slow lines, and ends at bad moments


def test_a_large_message_on_a_slow_line_is_no_silence(networks, pool, relayed):
    """It takes more than twice the deadline, and bytes flow all the time."""
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    at_bank, at_shop = connect(bank, shop, pool, f"127.0.0.1:{relayed(bank.port, bytes_a_second=2 * MEBIBYTE)}")
    at_shop.send(Note(number=1, ballast=bytes(7 * MEBIBYTE)))
    assert at_bank.receive(Note).number == 1


def test_a_line_on_which_a_record_takes_longer_than_the_deadline_brings_everything(networks, pool, relayed, links):
    """16 KiB of TLS take two seconds, and .75 s are silence: the parts of a record that have arrived count, to a normal end."""
    bank, shop, noted = networks("bank", listen="127.0.0.1:0"), networks("shop"), []
    waiting = pool.submit(bank.connect, {"shop": None}, notice=noted.append)
    at_shop = shop.connect({"bank": f"127.0.0.1:{relayed(bank.port, bytes_a_second=8_000)}"}, notice=noted.append)["bank"]
    at_bank = waiting.result()["shop"]
    at_shop.send(Note(number=1, ballast=bytes(20_000)))
    leaving = pool.submit(shop.close)
    assert len(at_bank.receive(Note).ballast) == 20_000
    bank.close()
    leaving.result()
    assert at_shop.failure is None
    assert len(links) == 2  # both ends of the first
    assert sorted(line.split(":")[0] for line in noted) == ["the line to bank is slow", "the line to shop is slow"]


def test_links_that_bring_nothing_across_end_with_a_lost_peer(networks, pool, relayed, links):
    """Each is cut within the same message, as by a proxy that counts bytes or seconds. No deadline ever passes in silence."""
    bank, shop = networks("bank", listen="127.0.0.1:0"), networks("shop")
    at_bank, at_shop = connect(bank, shop, pool, f"127.0.0.1:{relayed(bank.port, bytes_a_second=MEBIBYTE, cut_after=50_000)}")
    at_shop.send(Note(number=1, ballast=bytes(100_000)))
    for session in (at_bank, at_shop):
        error = pool.submit(error_of, session.receive, Note).result(timeout=20)
        assert isinstance(error, PeerLost)
        assert "connections in a row broke before a message had crossed whole" in str(error)
    assert len(links) <= 20


@pytest.fixture
def links(monkeypatch):
    """Return every end of a link that existed."""
    made, handshake = [], tls._Link.handshake

    async def counted(link):
        made.append(link)
        await handshake(link)

    monkeypatch.setattr(tls._Link, "handshake", counted)
    return made


@pytest.fixture
def relayed():
    """A relay that is slow in one direction, and may cut there. It is closed with all its ends."""
    ends = []

    def pump(source, sink, pause_s, chunk, left):
        try:
            while left > 0 and (data := source.recv(chunk)):
                sink.sendall(data)
                left -= len(data)
                time.sleep(pause_s * len(data))
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def make(port, *, bytes_a_second, cut_after=1 << 40):
        listener = socket.create_server(("127.0.0.1", 0))
        ends.append(listener)
        chunk = min(32_768, bytes_a_second // 50)

        def relay():
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend((near, far))
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=pump, args=(far, near, 0, 65_536, 1 << 40), daemon=True).start()
                threading.Thread(target=pump, args=(near, far, 1 / bytes_a_second, chunk, cut_after), daemon=True).start()

        threading.Thread(target=relay, daemon=True).start()
        return listener.getsockname()[1]

    yield make
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def test_an_end_in_the_moment_when_a_hello_arrives_does_not_hang(networks, pool, monkeypatch):
    """Before Python 3.12 wait_for() swallows a cancellation that comes together with what it waits for."""
    bank, shop = networks("bank", listen="127.0.0.1:0", limits=replace(QUICK, wait_s=3)), networks("shop")
    pool.submit(error_of, bank.connect, {"shop": None})
    read, hit = tls._Link.read, []

    async def interrupted(link):
        frame = await read(link)
        if link in shop._transport._links and not hit:
            hit.append(link)
            shop._loop._interrupted = True
            shop._loop._loop.stop()
        return frame

    monkeypatch.setattr(tls._Link, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shop.connect({"bank": f"127.0.0.1:{bank.port}"})
    began = time.monotonic()
    shop.close("interrupted")
    assert time.monotonic() - began < 5


def test_a_certificate_that_tls_does_not_take_is_named(identity, tmp_path):
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bank")])
    now = datetime.datetime.now(datetime.UTC)
    short = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, own = serialization.Encoding.PEM, (tmp_path / "short.pem", tmp_path / "short.key")
    own[0].write_bytes(short.public_bytes(pem))
    own[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with pytest.raises(ConfigError, match=r"short.pem, tls.key = .*short.key: TLS does not take the two \(ee key too small\)"):
        tls_context(replace(identity("bank"), certificate=own[0], key=own[1]))
