"""Two parties' networks over TLS on loopback."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tiny import QUICK

from tallystick.network.certificates import load_identity, write_test_certificates
from tallystick.network.endpoint import Endpoint


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    write_test_certificates(folder, ["bank", "shop", "club"])
    return folder


@pytest.fixture(scope="session")
def identity(certificates):
    def of(name, folder=certificates):
        return load_identity(name, ca=folder / "ca.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key")

    return of


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def networks(identity):
    """Make networks that are closed at the end: networks("bank", listen=...)."""
    made = []

    def make(name, *, limits=QUICK, listen=None, who=None, proxy=None):
        made.append(Endpoint(who or identity(name), limits=limits, listen=listen, proxy=proxy))
        return made[-1]

    yield make
    if made:  # side by side, because on a dead line each says its goodbye for 2 s
        with ThreadPoolExecutor(len(made)) as ends:
            list(ends.map(lambda network: network.close("the test is over"), made))


@pytest.fixture(scope="session")
def issue(certificates):
    """Issue a certificate that write_test_certificates would not: expired, or from another CA with the same name."""

    def write(folder, name, *, start=-1, end=1, ca_key=None):
        folder.mkdir(exist_ok=True)
        ca_key = ca_key or ec.generate_private_key(ec.SECP256R1())
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tallystick test CA")])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

        def builder(subject, public, first, last):
            return (
                x509.CertificateBuilder()
                .subject_name(subject)
                .issuer_name(ca_name)
                .public_key(public)
                .serial_number(x509.random_serial_number())
                .not_valid_before(now + datetime.timedelta(days=first))
                .not_valid_after(now + datetime.timedelta(days=last))
            )

        ca = builder(ca_name, ca_key.public_key(), -10, 10).add_extension(x509.BasicConstraints(True, 0), critical=True)
        own = builder(subject, key.public_key(), start, end).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
        )
        pem = serialization.Encoding.PEM
        (folder / "ca.pem").write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(pem))
        (folder / f"{name}.pem").write_bytes(own.sign(ca_key, hashes.SHA256()).public_bytes(pem))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return ca_key

    return write
