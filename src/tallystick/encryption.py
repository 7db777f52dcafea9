"""Encrypt files at rest with a party's own key.

Each file has its own key, derived by HKDF-SHA256 (RFC 5869) from the party's key and 32 random bytes in the file. The content is
cut into pieces. Piece n is encrypted with AES-256-GCM under nonce n, whose last byte says whether it is the last piece. So pieces
cannot be left out, repeated or reordered (STREAM, Hoang et al. 2015). The associated data of each piece says what the file is:
its place, run and party. So one file cannot take the place of another.

Guarantee: somebody who has the disk and not the key learns the files' names and sizes, and cannot change a file unnoticed. Not
protected: an older copy of a file in its own place; the memory of this process; content that a disk held before a key was named.
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
    """Raised if a file is not as it was encrypted, or was encrypted as another file or with another key. Its text says which."""


@dataclass(frozen=True)
class FolderKey:
    """Encrypt and decrypt the files of a party's run folders with the party's key. The key never appears in a repr.

    ``clear`` names the folders that may be unencrypted all the same, such as runs from before the key.
    """

    secret: bytes = field(repr=False)
    clear: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str, *, name: str) -> "FolderKey":
        """Read 64 hexadecimal digits. Raises ConfigError for anything else, without repeating it."""
        if not re.fullmatch(r"\s*[0-9a-fA-F]{64}\s*", text):
            raise ConfigError(f"{name}: must be 64 hexadecimal digits; make some with: openssl rand -hex {KEY_BYTES}")
        return cls(bytes.fromhex(text.strip()))

    @property
    def id(self) -> str:
        """Return the key's name. It reveals nothing of the key."""
        return hashlib.blake2b(self.secret, digest_size=ID_DIGITS // 2, person=b"tallystick key").hexdigest()

    def proof(self, content: bytes) -> str:
        """Authenticate some bytes: HMAC-SHA256 under a key that HKDF derives from this one, so only the key's owner
        can make it.
        """
        derive = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=b"tallystick run folder origin")
        return hmac.new(derive.derive(self.secret), content, hashlib.sha256).hexdigest()

    def encrypted(self, content: bytes | memoryview, *, place: str) -> Iterator[bytes]:
        """Yield the parts of an encrypted file. ``place`` says what the file is."""
        salt, whole = secrets.token_bytes(SALT_BYTES), memoryview(content)
        yield MAGIC + self.id.encode() + salt
        cipher, starts = self._cipher(salt), range(0, max(1, len(whole)), PIECE_BYTES)
        for number, start in enumerate(starts):
            piece = whole[start : start + PIECE_BYTES]
            yield cipher.encrypt(_nonce(number, last=number == len(starts) - 1), piece, place.encode())

    def decrypted(self, content: bytes | memoryview, *, place: str) -> bytes:
        """Decrypt content that was encrypted as this file. Raises NotDecrypted."""
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
