"""Make and check certificates: a test CA with one certificate per party, and checks that name the problem of a certificate.

A party's name is a DNS name in its certificate's subject alternative names; the peer pins it. You can bring your own CA and issue
such certificates from it: at run time nothing is needed but three PEM files. Certificates of CAs between a party's own and the
one in ``tls.ca`` follow the party's own in its file.
"""

import datetime
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tallystick.errors import ConfigError, printable
from tallystick.network.link import LinkBroken
from tallystick.network.proxy import MAX_ANSWER_BYTES, Proxy, check_answer, connect_request, is_whole
from tallystick.storage import files_together, make_folders, refuse_pipe

ALPN = "tallystick/1"
"""Protocol that both sides name in the TLS handshake. Neither talks to a side that offers another one."""
_ONE_CA = "one CA, or one `tallystick cert`, makes the certificates of both sides"
_NOT_THEIR_CA = f"the other side refuses this side's certificate, which is not signed by the CA in its tls.ca: {_ONE_CA}"
_ALERTS_OF_ANOTHER_CA = ("alert unknown ca", "alert decrypt error")  # the latter if both CAs have the same name, as test CAs do
NOT_OF_OUR_CA = (7, 18, 19, 20, 21)  # OpenSSL's X509_V_ERR: bad signature, self-signed, no issuer at hand


@dataclass(frozen=True, kw_only=True, repr=False)
class Identity:
    """A party's name, and the PEM files that prove it. The key stays in its file. ``warning`` says who else can read the key."""

    name: str
    ca: bytes
    certificate: Path
    key: Path
    key_password: str | None = None
    warning: str | None = None
    expires: datetime.datetime | None = None

    def __repr__(self) -> str:
        return f"Identity(name={self.name!r})"


def load_identity(name: str, *, ca: Path, certificate: Path, key: Path, key_password: str | None = None) -> Identity:
    """Read a party's PEM files and check that they work together. ``key_password`` decrypts the key's file.

    Raises ConfigError for a file that is missing or not PEM, a certificate that is expired, not yet valid, for another name or
    from another CA, a key that does not belong to the certificate, and anything that only TLS itself refuses.
    """
    authority, private_key, certified = _read(ca), _read(key), _read(certificate)
    identity = Identity(
        name=name,
        ca=authority,
        certificate=certificate,
        key=key,
        key_password=key_password,
        warning=open_to_others(key, named="tls.key", what="this private key"),
    )
    try:
        own, *between = x509.load_pem_x509_certificates(certified)
    except ValueError:
        raise ConfigError(f"tls.certificate = {certificate}: not a PEM certificate") from None
    try:
        authorities = x509.load_pem_x509_certificates(identity.ca)
    except ValueError:
        raise ConfigError(f"tls.ca = {ca}: not a PEM file of CA certificates") from None
    try:
        private = serialization.load_pem_private_key(
            private_key, password=key_password.encode() if key_password is not None else None
        )
    except TypeError:
        if key_password is None:
            raise ConfigError(f"tls.key = {key}: is encrypted; say in tls.key_password where its password is") from None
        raise ConfigError(f"tls.key = {key}: is not encrypted; leave out tls.key_password") from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = "" if key_password is None else ", or not encrypted with what tls.key_password gives"
        raise ConfigError(f"tls.key = {key}: not a PEM private key of a kind that TLS knows{wrong}") from None
    now = datetime.datetime.now(datetime.UTC)
    for each in (own, *between):
        whose = "" if each is own else f" a certificate in it, of {printable(each.subject.rfc4514_string())},"
        if now > each.not_valid_after_utc:
            raise ConfigError(
                f"tls.certificate = {certificate}:{whose} expired on {each.not_valid_after_utc:%Y-%m-%d}; "
                "ask your CA for a new one"
            )
        if now < each.not_valid_before_utc:
            raise ConfigError(
                f"tls.certificate = {certificate}:{whose} not valid before {each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; "
                "check the clock"
            )
    try:
        names = dns_names(own)
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ConfigError(f"tls.certificate = {certificate}: the names that it is issued to cannot be read ({error})") from None
    if name not in names:
        raise ConfigError(f"tls.certificate = {certificate}: issued to {', '.join(names) or 'nobody'}, not to party {name!r}")
    if not _leads_to(authorities, own, between):
        raise ConfigError(
            f"tls.certificate = {certificate}: not issued by the CA in {ca}; both parties need certificates that this CA issued, "
            "or one between whose certificate follows in the same file"
        )
    if private.public_key() != own.public_key():
        raise ConfigError(f"tls.key = {key}: does not belong to {certificate}")
    identity = replace(identity, expires=own.not_valid_after_utc)
    tls_context(identity)  # OpenSSL reads PEM more strictly, and requires longer keys
    return identity


def dns_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names to which a certificate is issued."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return extension.value.get_values_for_type(x509.DNSName)


def write_test_certificates(folder: Path, parties: list[str], *, days: int = 30) -> None:
    """Write ca.pem, ca.key and NAME.pem, NAME.key per party into ``folder``: for tests and trials.

    If the folder has a CA already, it issues the new parties' certificates, so that a party can join later. Whoever has ca.key
    can impersonate any party, so never give it away. Raises ConfigError rather than overwriting a file, and for a CA that cannot
    issue certificates.
    """
    if "ca" in parties:
        raise ConfigError("party ca: ca.pem and ca.key are the CA's own files; choose another name")
    for target in (folder / f"{party}{suffix}" for party in parties for suffix in (".pem", ".key")):
        if target.exists():
            raise ConfigError(f"{target} exists already; remove it or choose another folder")
    make_folders(folder)
    with files_together() as write:
        if (folder / "ca.pem").exists():
            where = f"{folder / 'ca.pem'}: cannot issue another certificate"
            anew = "choose another folder, and give all parties the certificates of that"
            if not (folder / "ca.key").exists():
                raise ConfigError(f"{where}: its key, ca.key, is not there; {anew}")
            try:
                ca = x509.load_pem_x509_certificate(_read(folder / "ca.pem"))
                ca_key = serialization.load_pem_private_key(_read(folder / "ca.key"), password=None)
            except (ValueError, TypeError, UnsupportedAlgorithm):
                raise ConfigError(f"{where}: it or ca.key is not a PEM file that can be read; {anew}") from None
            if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca_key.public_key() != ca.public_key():
                raise ConfigError(f"{where}: ca.key is not its key; {anew}")
            if ca.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
                raise ConfigError(f"{where}: it expired on {ca.not_valid_after_utc:%Y-%m-%d}; {anew}")
        else:
            ca_key = ec.generate_private_key(ec.SECP256R1())
            ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tallystick test CA")])
            constraints = x509.BasicConstraints(ca=True, path_length=0)
            builder = _builder(ca_name, ca_name, ca_key.public_key(), days).add_extension(constraints, critical=True)
            ca = builder.sign(ca_key, hashes.SHA256())
            if (folder / "ca.key").exists():
                raise ConfigError(f"{folder / 'ca.key'} exists already; remove it or choose another folder")
            write(folder / "ca.key", _pem_of(ca_key), private=True)
            write(folder / "ca.pem", ca.public_bytes(serialization.Encoding.PEM))
        ca_name = ca.subject
        last = ca.not_valid_after_utc
        for party in parties:
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
            certificate = (
                _builder(subject, ca_name, key.public_key(), days, until=last)
                .add_extension(x509.SubjectAlternativeName([x509.DNSName(party)]), critical=False)
                .add_extension(
                    x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
                )
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .sign(ca_key, hashes.SHA256())
            )
            write(folder / f"{party}.pem", certificate.public_bytes(serialization.Encoding.PEM))
            write(folder / f"{party}.key", _pem_of(key), private=True)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def refusal(error: ssl.SSLCertVerificationError) -> str:
    """Say why a peer's certificate is refused, and what to do if none of our CAs signed it."""
    text = f"its certificate is refused: {error.verify_message}"
    if error.verify_code not in NOT_OF_OUR_CA:
        return text
    return f"{text}; it is not signed by the CA in tls.ca: {_ONE_CA}"


def tls_context(identity: Identity, *, listens: bool = False) -> ssl.SSLContext:
    """Make a TLS 1.3 context that proves this party's identity and requires the peer's from its CAs.

    A dialling side also requires the name that it dials.

    Raises ConfigError for a certificate that TLS refuses, such as one with a short RSA key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # As DER: OpenSSL's PEM reader in Python accepts only ASCII, and such files carry comments.
    authorities = x509.load_pem_x509_certificates(identity.ca)
    context.load_verify_locations(cadata=b"".join(each.public_bytes(serialization.Encoding.DER) for each in authorities))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the issuing CA may itself be issued by another
    context.hostname_checks_common_name = False
    context.set_alpn_protocols([ALPN])
    if listens:
        context.num_tickets = 0  # no session is resumed: each link checks certificates again
    try:
        # Without a password an empty one is given: a key that has a password is then refused, and the user is not asked.
        context.load_cert_chain(identity.certificate, identity.key, password=identity.key_password or "")
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls.certificate = {identity.certificate}, tls.key = {identity.key}: TLS does not take the two ({reason(error)}); "
            "have them issued anew, as plain PEM files"
        ) from None
    except OSError as error:
        raise ConfigError(f"tls.key = {identity.key}: cannot be read any more ({error.strerror or error})") from None
    return context


PROBE_S = 5.0
"""Seconds that a peer may take to answer a probe."""


def probe(
    identity: Identity,
    peer: str,
    address: str,
    *,
    proxy: Proxy | None = None,
    timed: Callable[[float], None] = lambda _: None,
) -> str | None:
    """Try one TLS 1.3 handshake with the peer. Say in words what prevents it, or return None if it succeeds.

    ``timed`` is called with the seconds of the handshake: a round trip, and some milliseconds of computing.

    It distinguishes an expired certificate, a wrong name, another CA, a closed port, no TLS and another kind of server.
    """
    context = tls_context(identity)
    try:
        with (
            _call(address, proxy) as raw,
            context.wrap_socket(raw, server_hostname=peer, do_handshake_on_connect=False) as tls,
        ):
            began = time.perf_counter()
            tls.do_handshake()
            timed(time.perf_counter() - began)
            if tls.selected_alpn_protocol() != ALPN:
                return no_tallystick(peer, address)
            # In TLS 1.3 the server checks our certificate after our side is done, so wait for its result.
            tls.settimeout(1.0)
            try:
                if tls.recv(1) == b"":
                    return not_accepted(peer, address, "the peer hung up")
            except TimeoutError:
                pass
    except ssl.SSLCertVerificationError as error:
        return f"{peer} at {address}: {refusal(error)}"
    except ssl.SSLError as error:
        return f"{peer} at {address}: TLS 1.3 handshake failed: {reason(error)}"
    except TimeoutError:
        return f"{peer} at {address}: no answer within {PROBE_S:g} s; check the address and the firewall"
    except OSError as error:
        return f"{peer} at {address}: {reason(error)}"
    except LinkBroken as error:
        return f"{peer} at {address}: {error}"
    return None


def _call(address: str, proxy: Proxy | None) -> socket.socket:
    host, _, port = (address if proxy is None else proxy.address).rpartition(":")
    raw = socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S)
    if proxy is None:
        return raw
    try:
        raw.sendall(connect_request(proxy, address))
        answer, until = bytearray(), time.monotonic() + PROBE_S
        while not is_whole(answer) and (chunk := raw.recv(MAX_ANSWER_BYTES - len(answer))):
            answer += chunk
            raw.settimeout(max(0.01, until - time.monotonic()))
        check_answer(answer, proxy)
    except BaseException:  # also for an interrupt: no other code knows the socket yet
        raw.close()
        raise
    raw.settimeout(PROBE_S)
    return raw


def reason(error: OSError) -> str:
    """Say what TLS or the system reports about a failure."""
    if isinstance(error, ssl.SSLError):
        text = (error.reason or str(error)).lower().replace("_", " ")
        return f"{text}: {_NOT_THEIR_CA}" if text.endswith(_ALERTS_OF_ANOTHER_CA) else text
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio has its own texts
    return error.strerror or str(error)


def not_accepted(peer: str, address: str, why: str) -> str:
    """Describe a listener that closes the connection at the point where TLS 1.3 checks a dialler's certificate."""
    return (
        f"{peer} at {address}: closed the connection right after the TLS handshake ({why}); it may not accept this "
        f"side's certificate: is it expired, or from a CA that {peer} does not trust?"
    )


def no_tallystick(peer: str, address: str) -> str:
    """Describe a listener that speaks another protocol over TLS."""
    return f"{peer} at {address}: does not speak {ALPN} after the TLS handshake; is this the address on which {peer} listens?"


def open_to_others(path: Path, *, named: str, what: str) -> str | None:
    """Say that other users than its owner can read a file with a secret, or return None if nobody can."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return None
    return f"{named} = {path}: others on this machine can read {what} (mode {mode:04o}); chmod 600 {path}"


def _read(path: Path) -> bytes:
    refuse_pipe(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; `tallystick cert` makes test certificates") from None


def _leads_to(authorities: list[x509.Certificate], own: x509.Certificate, between: list[x509.Certificate]) -> bool:
    """Tell whether one of the authorities issued a certificate, directly or through others. The peer's TLS checks the rest."""
    last, candidates = own, list(between)
    while not any(_issued(authority, last) for authority in authorities):
        issuer = next((each for each in candidates if _issued(each, last)), None)
        if issuer is None:
            return False
        candidates.remove(issuer)
        last = issuer
    return True


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    days: int,
    until: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    """Build a certificate for this many days, which ends no later than ``until``: a chain ends with its first link."""
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))  # clocks of two machines differ
        .not_valid_after(end if until is None else min(end, until))
    )
