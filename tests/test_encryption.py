"""Encrypted files: a foreign reader of the format, what is detected, and what a key says about itself."""

import itertools
import re

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from tallystick import encryption
from tallystick.encryption import KEY_BYTES, MAGIC, FolderKey, NotDecrypted
from tallystick.errors import ConfigError

KEY, OTHER = FolderKey(bytes(range(32))), FolderKey(bytes(32))
PLACE = "model.safetensors of run 00 of bank"


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(encryption, "PIECE_BYTES", 100)


def sealed(content, *, key=KEY, place=PLACE):
    return b"".join(key.encrypted(content, place=place))


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 1234])
def test_what_was_encrypted_comes_back_and_a_foreign_reading_gives_the_same(size):
    content = bytes(number % 251 for number in range(size))
    file = sealed(content)
    assert KEY.decrypted(file, place=PLACE) == content
    head = len(MAGIC) + 16
    derived = HKDF(algorithm=hashes.SHA256(), length=32, salt=file[head : head + 32], info=b"tallystick run folder file")
    cipher, rest, plain = AESGCM(derived.derive(bytes(range(32)))), file[head + 32 :], b""
    for number in itertools.count():
        piece, rest = rest[:116], rest[116:]
        plain += cipher.decrypt(number.to_bytes(11, "big") + (b"\0" if rest else b"\1"), piece, PLACE.encode())
        if not rest:
            break
    assert plain == content


def test_the_same_content_is_never_the_same_file():
    assert sealed(b"same") != sealed(b"same")


@given(st.data())
def test_any_changed_byte_is_noticed(data):
    file = bytearray(sealed(bytes(250)))
    at = data.draw(st.integers(0, len(file) - 1))
    file[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(NotDecrypted):
        KEY.decrypted(bytes(file), place=PLACE)


def test_pieces_that_are_cut_off_repeated_or_in_another_order_are_noticed():
    file, head = sealed(bytes(range(250))), len(MAGIC) + 16 + 32
    pieces = [file[at : at + 116] for at in range(head, len(file), 116)]
    assert len(pieces) == 3
    for kept in ([0, 1], [0], [1, 0, 2], [0, 1, 1, 2], [0, 2], [2]):
        with pytest.raises(NotDecrypted, match="was changed after it was written"):
            KEY.decrypted(file[:head] + b"".join(pieces[number] for number in kept), place=PLACE)


def test_another_file_another_key_and_a_plain_file_are_told_apart():
    with pytest.raises(NotDecrypted, match="or is another file in this one's place"):
        KEY.decrypted(sealed(b"x", place="model.safetensors of run 01 of bank"), place=PLACE)
    with pytest.raises(NotDecrypted, match="with another key"):
        KEY.decrypted(sealed(b"x", key=OTHER), place=PLACE)
    with pytest.raises(NotDecrypted, match="is not encrypted"):
        KEY.decrypted(b'{"seal": "x"}', place=PLACE)


def test_a_key_is_read_from_hexadecimal_digits_and_shown_nowhere():
    text = bytes(range(32)).hex()
    assert FolderKey.of(f"{text.upper()} \n", name="encryption.key") == KEY
    assert text not in f"{KEY!r} {KEY} {KEY.id}"
    assert re.fullmatch("[0-9a-f]{16}", KEY.id)
    assert OTHER.id != KEY.id
    for wrong in ("", text[1:], text + "00", "g" + text[1:]):
        with pytest.raises(ConfigError, match=f"openssl rand -hex {KEY_BYTES}") as caught:
            FolderKey.of(wrong, name="encryption.key")
        assert not wrong or wrong not in str(caught.value)
