"""Compare each part of the oblivious pseudorandom function with a slow reference."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import permutations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from tallystick.alignment.exchange import receive_list, send_list
from tallystick.alignment.group import elements_of, generated
from tallystick.alignment.oprf.base_transfers import transfer_receiver, transfer_sender
from tallystick.alignment.oprf.bit_matrix import turned
from tallystick.alignment.oprf.codes import Codes, fingerprints
from tallystick.alignment.oprf.cuckoo import NoPlace, bins_per_region, place
from tallystick.alignment.oprf.extension import Receiver, Sender, outputs
from tallystick.alignment.oprf.lookup import Lookup
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import ProtocolError
from tallystick.network.channel import memory_channels

from ..roles import error_of

RNG = SecureRandom(source=np.random.default_rng(1).bytes)


def random_bytes(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def transfers(choices):
    ours, theirs = memory_channels("sender", "receiver", timeout_s=20)
    with ThreadPoolExecutor(2) as pool:
        pairs = pool.submit(transfer_sender, ours, len(choices), rng=RNG)
        chosen = pool.submit(transfer_receiver, theirs, choices, rng=RNG)
        return pairs.result(), chosen.result()


def test_a_transfer_gives_the_chosen_seed_and_not_the_other():
    choices = np.random.default_rng(2).random(64) < 0.5
    (first, second), chosen = transfers(choices)
    assert np.array_equal(chosen, np.where(choices[:, None], second, first))
    everything = np.concatenate((first, second))
    assert len({seed.tobytes() for seed in everything}) == 128


@pytest.mark.parametrize("element", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31)])
def test_transfers_refuse_what_is_no_element(element):
    wrong = np.frombuffer(element, dtype=np.uint8)[None]
    receiver = error_of(
        lambda channel: transfer_receiver(channel, np.array([True, False]), rng=RNG),
        lambda channel: send_list(channel, "base transfers: the sender's key", wrong),
    )

    def asks(channel):
        receive_list(channel, "base transfers: the sender's key", 1, shape=(32,))
        send_list(channel, "base transfers: the receiver's choices", np.repeat(wrong, 4, axis=0))

    # The identity is an element like any other here: a mask is added to it.
    sender = error_of(lambda channel: transfer_sender(channel, 2, rng=RNG), asks)
    for error in (receiver, *([] if element == bytes(32) else [sender])):
        assert isinstance(error, ProtocolError)
        assert "canonical" in str(error)
        assert error.peer == "peer"


def test_a_receiver_that_cancels_a_mask_learns_no_seed_of_a_known_element():
    """A sender of r0 = -H(r1) makes the shared element the identity. That is refused, because everybody would know its seed."""
    from tallystick.alignment.group import subtract
    from tallystick.alignment.oprf.base_transfers import _masks

    def asks(channel):
        receive_list(channel, "base transfers: the sender's key", 1, shape=(32,))
        other = elements_of([RNG.bytes(64)])
        cancelled = subtract(np.zeros((1, 32), np.uint8), _masks(other, side=1))
        send_list(channel, "base transfers: the receiver's choices", np.concatenate((cancelled, other)))

    error = error_of(lambda channel: transfer_sender(channel, 1, rng=RNG), asks)
    assert isinstance(error, ProtocolError)
    assert "identity" in str(error)


def test_generated_elements_are_those_of_the_standard():
    """RFC 9496, appendix A.1: the first multiples of the generator."""
    from tallystick.alignment.group import Scalar

    multiples = generated([Scalar(number.to_bytes(32, "little")) for number in (1, 2)])
    assert multiples[0].tobytes().hex() == "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76"
    assert multiples[1].tobytes().hex() == "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919"


@pytest.mark.parametrize("words", [1, 3])
def test_turning_a_bit_matrix_is_what_unpacked_bits_say(words):
    columns = np.random.default_rng(3).integers(0, 1 << 64, (128, words), dtype=np.uint64)
    bits_CR = np.unpackbits(columns.view(np.uint8), axis=1, bitorder="little")
    assert np.array_equal(np.unpackbits(turned(columns), axis=1, bitorder="little"), bits_CR.T)


def test_code_words_and_bins_are_blocks_of_aes():
    key, ids = b"k" * 16, [b"ann", b"bob"]
    prints = fingerprints(ids)
    assert prints[1].tobytes() == blake2b(b"bob", digest_size=16, person=b"tallystick order").digest()

    def block(row, number):
        encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        return encryptor.update(bytes([prints[row, 0] ^ number]) + prints[row, 1:].tobytes())

    codes = Codes(key)
    assert codes.words(prints)[1].tobytes() == b"".join(block(1, number) for number in (1, 2, 3, 4))
    words = np.frombuffer(block(1, 5) + block(1, 6), dtype="<u8")[:3]
    assert codes.bins(prints, per_region=1000)[:, 1].tolist() == [(int(word) >> 12) * 1000 >> 52 for word in words]


@given(seed=st.integers(0, 2**32 - 1), ids=st.integers(1, 300))
def test_every_id_stands_once_in_a_bin_of_its_own(seed, ids):
    generator = np.random.default_rng(seed)
    per_region = bins_per_region(ids)
    bins = generator.integers(0, per_region, (3, ids), dtype=np.int32)
    table = place(bins, per_region=per_region, generator=generator)
    filled = np.flatnonzero(table >= 0)
    assert sorted(table[filled]) == list(range(ids))
    region, offset = np.divmod(filled, per_region)
    assert np.array_equal(bins[region, table[filled]], offset)


@given(order=st.permutations(range(6)))
def test_a_table_is_found_where_only_one_arrangement_is_left(order):
    """Six ids in six bins: a chain in which each but the first shares two of its bins with the one before."""
    bins = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]], dtype=np.int32).T[:, list(order)]
    table = place(bins, per_region=2, generator=np.random.default_rng(0))
    assert sorted(table) == list(range(6))
    assert any(all(bins[region, chosen[2 * region + bin_]] == bin_ for region in range(3) for bin_ in (0, 1))
               for chosen in permutations(range(6)))  # fmt: skip


def test_four_ids_in_three_bins_have_no_table():
    with pytest.raises(NoPlace, match="1 of 4 ids"):
        place(np.zeros((3, 4), dtype=np.int32), per_region=5, generator=np.random.default_rng(0))


def bit_by_bit(seeds, row):
    """Return row ``row`` of the seeds' streams as a list of bits: the reference for streams and for transposing."""
    bits = []
    for seed in seeds:
        stream = Cipher(algorithms.AES(seed.tobytes()), modes.CTR(bytes(16))).encryptor().update(bytes(row // 8 + 1))
        bits.append(stream[row // 8] >> (row % 8) & 1)
    return bits


def test_the_function_is_the_papers_bit_by_bit():
    first, second = random_bytes(4, 512, 16), random_bytes(5, 512, 16)
    choices = np.random.default_rng(6).random(512) < 0.5
    code, other = random_bytes(7, 64, 64), random_bytes(8, 64, 64)
    receiver, sender = Receiver(first, second), Sender(np.where(choices[:, None], second, first), choices)
    inputs, corrections = receiver.next_bins(code)
    secrets = sender.next_bins(corrections)
    for row in (0, 37, 63):
        t0, t1 = bit_by_bit(first, row), bit_by_bit(second, row)
        word = np.unpackbits(code[row], bitorder="little").tolist()
        assert np.unpackbits(inputs[row], bitorder="little").tolist() == t0
        assert np.unpackbits(corrections[row], bitorder="little").tolist() == [
            a ^ b ^ c for a, b, c in zip(t0, t1, word, strict=True)
        ]
    assert np.array_equal(sender.inputs(secrets, code), inputs)
    apart = np.unpackbits(sender.inputs(secrets, other) ^ inputs, axis=1).sum(axis=1, dtype=np.int64)
    # Each of 512 bits differs where the code words and the choice do: with a chance of 1/4, so 128 ± 9.8.
    assert (abs(apart - 128) < 60).all()


def test_bins_go_on_where_the_last_piece_ended():
    first, second, code = random_bytes(4, 512, 16), random_bytes(5, 512, 16), random_bytes(7, 256, 64)
    whole, _ = Receiver(first, second).next_bins(code)
    pieces = Receiver(first, second)
    assert np.array_equal(np.concatenate([pieces.next_bins(code[:128])[0], pieces.next_bins(code[128:])[0]]), whole)


def test_outputs_are_hashes_of_input_and_bin():
    inputs, salt = random_bytes(9, 2, 64), b"s" * 16
    hashed = blake2b(inputs[1].tobytes() + salt + (70_000).to_bytes(8, "little"), digest_size=9)
    assert outputs(inputs, np.array([1, 70_000], dtype=np.int32), salt=salt, size=9)[1].tobytes() == hashed.digest()


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(8, 12), spread=st.sampled_from([2, 256]))
def test_a_lookup_finds_what_a_dictionary_finds(seed, width, spread):
    """A spread of 2 makes outputs that share their first 8 bytes, and some that are equal."""
    generator = np.random.default_rng(seed)
    own = np.zeros((40, width), dtype=np.uint8)
    own[:, [0, 7, width - 1]] = generator.integers(0, spread, (40, 3))
    own = np.unique(own, axis=0)
    asked = np.concatenate((own[::2], own[:3] ^ 1, random_bytes(seed, 10, width)))
    lookup = Lookup(width)
    lookup.add(own[:5], np.arange(5))
    lookup.add(own[5:], np.arange(5, len(own)))
    known = {output.tobytes(): row for row, output in enumerate(own)}
    rows, places = lookup.find(asked)
    expected = {(known[output.tobytes()], at) for at, output in enumerate(asked) if output.tobytes() in known}
    assert set(zip(rows.tolist(), places.tolist(), strict=True)) == expected
    assert len(rows) == len(expected)
