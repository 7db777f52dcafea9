"""Callers who are nobody's peer: without a certificate, with one of another CA, with one that is no party's."""

import contextlib
import datetime
import logging
import resource
import socket
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tiny import PATIENCE_S, QUICK, error_of

from tallystick.errors import ConfigError, IdentityError, PeerLost, StorageError
from tallystick.network import endpoint as networking
from tallystick.network import tls
from tallystick.network.certificates import ALPN, load_identity
from tallystick.network.messages import WIRE_VERSION
from tallystick.network.session import HELLO, Hello, first_frame
from tallystick.storage import write_bytes

from .wire import Note, hung_up

DESCRIPTORS = 1_024
STRANGERS = 1_500


@pytest.fixture
def many_descriptors():
    """This process may hold all the strangers' ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = STRANGERS + 1_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this test needs {wanted} file descriptors; the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Strangers:
    """Open TCP connections that say nothing and hang up only when the other side has."""

    def __init__(self):
        self.held = []

    def call(self, port, *, within_s):
        """Try once more to be accepted, or at least to get into the kernel's queue."""
        with contextlib.suppress(TimeoutError):
            self.held.append(socket.create_connection(("127.0.0.1", port), timeout=within_s))

    def close(self):
        for end in self.held:
            end.close()


@pytest.mark.long
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can lower a running process's limits")
def test_many_strangers_while_it_trains_leave_a_job_its_descriptors(lay_out_job, many_descriptors):
    job = lay_out_job(training__epochs=10_000, training__checkpoint_every=20)
    running = job.start_all()
    bank = running["bank"]
    bank.phase("training")
    resource.prlimit(bank.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    port = int((job.home("bank") / "party.yaml").read_text().partition("listen: 127.0.0.1:")[2].split()[0])
    files = Path(f"/proc/{bank.process.pid}/fd")
    before = most = len(list(files.iterdir()))
    strangers = Strangers()
    try:
        while len(strangers.held) < STRANGERS and bank.process.is_alive():
            strangers.call(port, within_s=0.03)
            if len(strangers.held) % 20 == 0:
                most = max(most, len(list(files.iterdir())))
        assert len(strangers.held) == STRANGERS, bank.said
        done = max(event["done"] for event in bank.events if event.get("what") == "training")
        bank.wait_for(lambda event: event.get("what") == "training" and event["done"] > done + 40)  # and some checkpoints
        bank.process.terminate()
        assert bank.end() == 130, bank.said
        assert running["shop"].end() == 3
    finally:
        strangers.close()
    assert most <= before + tls.STRANGERS + 10  # files that a checkpoint opens
    assert not any("Traceback" in line for party in running.values() for line in party.said)


def call(port, folder, name):
    """Call with a certificate, and say nothing."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    context.set_alpn_protocols([ALPN])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="bank")


def test_links_of_who_is_no_party_are_few_and_short(networks, pool, certificates):
    limits = replace(QUICK, deadline_s=20)
    bank, shop = networks("bank", listen="127.0.0.1:0", limits=limits), networks("shop", limits=limits)
    waiting = pool.submit(bank.connect, {"shop": None})
    began = time.monotonic()
    with contextlib.ExitStack() as open_calls:
        calls = [open_calls.enter_context(call(bank.port, certificates, "club")) for _ in range(20)]
        at_shop = shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"]  # none of them replaces it
        at_bank = waiting.result()["shop"]
        assert len(bank._guests[None]) <= networking.GUESTS
        assert all(hung_up(each) for each in calls)
        assert time.monotonic() - began < 10  # far from the deadline
        assert len(bank._transport._links) == 1
    at_shop.send(Note(number=1))
    assert at_bank.receive(Note).number == 1


def test_a_caller_of_another_ca_is_named_at_once(networks, pool, issue, identity, tmp_path):
    issue(tmp_path, "shop")
    bank = networks("bank", listen="127.0.0.1:0", limits=replace(QUICK, wait_s=60))
    said = []
    waiting = pool.submit(error_of, lambda: bank.connect({"shop": None}, notice=said.append))
    foreign = replace(identity("shop"), certificate=tmp_path / "shop.pem", key=tmp_path / "shop.key")
    shop = networks("shop", who=foreign, limits=replace(QUICK, wait_s=3))
    assert isinstance(error_of(shop.connect, {"bank": f"127.0.0.1:{bank.port}"}), PeerLost)
    assert not waiting.done()
    assert (
        said.count("a caller from 127.0.0.1 is refused: its certificate: certificate signature failure (is its CA in tls.ca?)")
        == 1
    )
    bank._sessions["shop"].fail(PeerLost("shop", "shop did not come up"))
    assert "; a caller from 127.0.0.1 is refused: " in str(waiting.result())


def test_a_listener_whose_ca_the_caller_does_not_know_is_told_so(networks, pool, issue, identity, tmp_path):
    """The caller finds the fault first, so the listener only gets an alert. Its line said "tlsv1 alert decrypt error"
    and no more.
    """
    issue(tmp_path, "shop")
    bank, said = networks("bank", listen="127.0.0.1:0", limits=replace(QUICK, wait_s=60)), []
    waiting = pool.submit(error_of, lambda: bank.connect({"shop": None}, notice=said.append))
    parts = {"ca": (tmp_path / "ca.pem").read_bytes(), "certificate": tmp_path / "shop.pem", "key": tmp_path / "shop.key"}
    shop = networks("shop", who=replace(identity("shop"), **parts), limits=replace(QUICK, wait_s=3))
    assert isinstance(error_of(shop.connect, {"bank": f"127.0.0.1:{bank.port}"}), IdentityError)
    for _ in range(int(PATIENCE_S / 0.05)):  # the alert may come after the caller has given up
        if said:
            break
        time.sleep(0.05)
    bank._sessions["shop"].fail(PeerLost("shop", "shop did not come up"))
    waiting.result()
    (line,) = said
    assert line.endswith(
        "alert decrypt error: the other side refuses this side's certificate, which is not signed by the CA in its tls.ca: "
        "one CA, or one `tallystick cert`, makes the certificates of both sides"
    )


def certificate(folder, names):
    """Make a CA, and a certificate from it whose subject alternative names are these bytes, in DER."""
    folder.mkdir()
    keys = {each: ec.generate_private_key(ec.SECP256R1()) for each in ("ca", "shop")}
    now, pem = datetime.datetime.now(datetime.UTC), serialization.Encoding.PEM
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "another CA")])

    def made(subject, key, extension, *, critical):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(keys[key].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=critical)
            .sign(keys["ca"], hashes.SHA256())
            .public_bytes(pem)
        )

    (folder / "ca.pem").write_bytes(made(ca_name, "ca", x509.BasicConstraints(True, 0), critical=True))
    alternatives = x509.UnrecognizedExtension(x509.oid.ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names)
    shop = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop")])
    (folder / "shop.pem").write_bytes(made(shop, "shop", alternatives, critical=False))
    key = keys["shop"].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "shop.key").write_bytes(key)


def dns_names(*names):
    inner = b"".join(bytes((0x82, len(name))) + name for name in names)
    return bytes((0x30, len(inner))) + inner


@pytest.mark.parametrize("names", [dns_names(b"shop", b"caf\xe9"), dns_names(b"shop", b"\xff\xfe")])
def test_a_name_that_is_no_text_harms_no_listener(networks, pool, identity, certificates, tmp_path, names):
    certificate(tmp_path / "other", names)
    both = (certificates / "ca.pem").read_bytes() + (tmp_path / "other" / "ca.pem").read_bytes()
    (tmp_path / "other" / "ca.pem").write_bytes(both)
    bank, shop = networks("bank", listen="127.0.0.1:0", who=replace(identity("bank"), ca=both)), networks("shop")
    said = []
    waiting = pool.submit(lambda: bank.connect({"shop": None}, notice=said.append))
    with call(bank.port, tmp_path / "other", "shop") as caller:
        assert hung_up(caller)
    at_shop = shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"]
    at_shop.send(Note(number=1))
    assert waiting.result()["shop"].receive(Note).number == 1
    assert (
        "a caller from 127.0.0.1 is refused: the TLS 1.3 handshake failed: the names in its certificate are not readable text"
        in said
    )
    files = {"certificate": tmp_path / "other" / "shop.pem", "key": tmp_path / "other" / "shop.key"}
    with pytest.raises(ConfigError, match=r"tls.certificate = .*shop.pem: the names that it is issued to cannot be read"):
        load_identity("shop", ca=tmp_path / "other" / "ca.pem", **files)


def test_a_name_that_drives_a_terminal_is_shown_as_what_it_is(networks, pool, identity, certificates, tmp_path):
    certificate(tmp_path / "other", dns_names(b"club\x1b[2K\rall is well"))
    both = (certificates / "ca.pem").read_bytes() + (tmp_path / "other" / "ca.pem").read_bytes()
    (tmp_path / "other" / "ca.pem").write_bytes(both)
    bank, shop = networks("bank", listen="127.0.0.1:0", who=replace(identity("bank"), ca=both)), networks("shop")
    said = []
    waiting = pool.submit(lambda: bank.connect({"shop": None}, notice=said.append))
    hello = Hello(wire_version=WIRE_VERSION, party="shop", process=b"1" * 16, peer_process=b"", received=0)
    frame = b"".join(first_frame(HELLO, hello))
    with call(bank.port, tmp_path / "other", "shop") as caller:
        caller.sendall(tls.LENGTH.pack(len(frame)) + frame)
        assert not hung_up(caller)  # it is told why
    shop.connect({"bank": f"127.0.0.1:{bank.port}"})
    waiting.result()
    assert said == [r"a caller who says to be 'shop' holds a certificate for club\x1b[2K\rall is well"]


@pytest.mark.parametrize("comment", ["Zertifikate für alle".encode(), "für alle".encode("latin-1"), b"\xff\xfe"])
def test_a_comment_in_any_encoding_may_stand_in_a_ca_file(networks, pool, certificates, tmp_path, comment):
    ca = tmp_path / "ca.pem"
    ca.write_bytes(b"# " + comment + b"\n" + (certificates / "ca.pem").read_bytes())

    def of(name):
        return load_identity(name, ca=ca, certificate=certificates / f"{name}.pem", key=certificates / f"{name}.key")

    bank, shop = networks("bank", listen="127.0.0.1:0", who=of("bank")), networks("shop", who=of("shop"))
    waiting = pool.submit(bank.connect, {"shop": None})
    shop.connect({"bank": f"127.0.0.1:{bank.port}"})["bank"].send(Note(number=1))
    assert waiting.result()["shop"].receive(Note).number == 1


def test_a_listener_that_is_closed_amid_calls_leaves_nothing_behind(networks, monkeypatch):
    """Earlier a call that was accepted in the last moment belonged to nobody, and asyncio complained."""
    complaints = []
    monkeypatch.setattr(logging.getLogger("asyncio"), "handle", complaints.append)
    enough, bank = threading.Event(), networks("bank", listen="127.0.0.1:0")
    for _ in range(10):
        port, enough = bank.port, threading.Event()

        def flood(port=port, enough=enough):
            while not enough.is_set():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.1):
                    pass

        flooding = threading.Thread(target=flood)
        flooding.start()
        time.sleep(0.05)
        bank.close()
        enough.set()
        flooding.join()
        assert not bank._transport._links
        assert not bank._loop._tasks
        bank = networks("bank", listen="127.0.0.1:0")
    assert not complaints


def test_a_process_without_descriptors_is_not_told_to_free_disk_space(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        last = held.enter_context((tmp_path / "last").open("wb")).fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 20, hard))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with contextlib.suppress(OSError):
            while True:
                held.enter_context((tmp_path / "last").open("rb"))
        with pytest.raises(StorageError, match=r"Too many open files; .* raise the limit \(ulimit -n\)"):
            write_bytes(tmp_path / "step-10.safetensors", b"content")
