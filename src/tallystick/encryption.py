"""Files encrypted at rest with a party's own key.

Each file has a key of its own, by HKDF-SHA256 (RFC 5869) from the party's key and 32 random bytes that stand in the file. Its
content is cut into pieces, and piece n is AES-256-GCM under nonce n, whose last byte says whether it is the last piece: pieces
cannot be left out, repeated or put in another order (STREAM, Hoang et al. 2015). What the file is, its place, run and party, is
associated data of each piece: one file cannot stand in for another.

Guarantee: who has the disk and not the key learns the files' names and sizes, and cannot change one unnoticed. Not protected: an
older copy of a file in its own place; what this process holds in memory; a disk's former content, from before a key was named.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tallystick.errors import ConfigError

MAGIC = b"tallystick encrypted 1\n"
PIECE_BYTES = 4 << 20
KEY_BYTES, SALT_BYTES, ID_DIGITS = 32, 32, 16
_TAG_BYTES = 16
_HEAD = len(MAGIC) + ID_DIGITS + SALT_BYTES


class NotDecrypted(ValueError):
    """A file that is not as it was encrypted, or was encrypted as another file or with another key. Its text says which."""


@dataclass(frozen=True)
class FolderKey:
    """The key that a party's run folders are encrypted with. It never appears in a repr.

    ``clear`` names the folders that may lie open all the same, such as runs from before the key.
    """

    secret: bytes = field(repr=False)
    clear: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str, *, name: str) -> "FolderKey":
        """Read 64 hexadecimal digits. Raises ConfigError, which does not repeat them, for anything else."""
        if not re.fullmatch(r"\s*[0-9a-fA-F]{64}\s*", text):
            raise ConfigError(f"{name}: must be 64 hexadecimal digits; make some with: openssl rand -hex {KEY_BYTES}")
        return cls(bytes.fromhex(text.strip()))

    @property
    def id(self) -> str:
        """Return the key's name, from which nothing of the key follows."""
        return hashlib.blake2b(self.secret, digest_size=ID_DIGITS // 2, person=b"tallystick key").hexdigest()

    def proof(self, content: bytes) -> str:
        """Prove some bytes as only the key's owner can: HMAC-SHA256 under a key of its own, by HKDF from this one."""
        derive = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=b"tallystick run folder origin")
        return hmac.new(derive.derive(self.secret), content, hashlib.sha256).hexdigest()

    def encrypted(self, content: bytes | memoryview, *, place: str) -> Iterator[bytes]:
        """Yield a file's parts. ``place`` says what the file is."""
        salt, whole = secrets.token_bytes(SALT_BYTES), memoryview(content)
        yield MAGIC + self.id.encode() + salt
        cipher, starts = self._cipher(salt), range(0, max(1, len(whole)), PIECE_BYTES)
        for number, start in enumerate(starts):
            piece = whole[start : start + PIECE_BYTES]
            yield cipher.encrypt(_nonce(number, last=number == len(starts) - 1), piece, place.encode())

    def decrypted(self, content: bytes | memoryview, *, place: str) -> bytes:
        """Return what was encrypted as this file. Raises NotDecrypted."""
        whole = memoryview(content)
        if bytes(whole[: len(MAGIC)]) != MAGIC or len(whole) < _HEAD + _TAG_BYTES:
            raise NotDecrypted("it is not encrypted, in a folder whose files are")
        key_id = bytes(whole[len(MAGIC) :][:ID_DIGITS]).decode("ascii", "replace")
        if key_id != self.id:
            raise NotDecrypted("it is encrypted with another key than the folder's other files")
        cipher = self._cipher(bytes(whole[_HEAD - SALT_BYTES : _HEAD]))
        starts = range(_HEAD, len(whole), PIECE_BYTES + _TAG_BYTES)
        pieces = []
        for number, start in enumerate(starts):
            piece = whole[start : start + PIECE_BYTES + _TAG_BYTES]
            try:
                pieces.append(cipher.decrypt(_nonce(number, last=number == len(starts) - 1), piece, place.encode()))
            except (InvalidTag, ValueError):
                raise NotDecrypted("it was changed after it was written, or is another file in this one's place") from None
        return b"".join(pieces)

    def _cipher(self, salt: bytes) -> AESGCM:
        derive = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=b"tallystick run folder file")
        return AESGCM(derive.derive(self.secret))


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])
