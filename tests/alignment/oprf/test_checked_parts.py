"""Compare the parts of the intersection against cheaters with slow references."""

from itertools import combinations
from math import ceil, e, log2

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp
from scipy.stats import poisson

from tallystick.alignment import psi_malicious
from tallystick.alignment.oprf import key_value
from tallystick.alignment.oprf.bit_matrix import turned, turned_back
from tallystick.alignment.oprf.checked_extension import CheckedReceiver, CheckedSender, column_words, hashed
from tallystick.alignment.oprf.key_value import DENSE, NoStore, Probes, StoreShape, looked_up, probes, store_of
from tallystick.alignment.oprf.linear_code import COLUMNS, DATA_BITS, DISTANCE, code_words, generator
from tallystick.alignment.randomness import SecureRandom

RNG = SecureRandom(source=np.random.default_rng(1).bytes)


def random_words(seed, *shape):
    return np.random.default_rng(seed).integers(0, 1 << 64, shape, dtype=np.uint64)


def bits(columns):
    """Return columns of words as a matrix of 0 and 1, with a row for each bit of a column."""
    return np.unpackbits(columns.view(np.uint8), axis=1, bitorder="little").T


# The code.


def test_a_symbol_of_six_bits_becomes_eleven_that_differ_in_four():
    inner = generator()[:6, :11]  # of the constant polynomial, at the first point
    words = {tuple(np.bitwise_xor.reduce(inner[list(chosen)], axis=0, initial=False))
             for size in range(7) for chosen in combinations(range(6), size)}  # fmt: skip
    assert len(words) == 64
    assert sorted(sum(word) for word in words)[1] == 4


def field_product(first, second):
    product = 0
    for place in range(6):
        product ^= (first << place) * (second >> place & 1)
    for place in range(10, 5, -1):
        product ^= (0b1000011 << (place - 6)) * (product >> place & 1)
    return product


def test_symbols_are_those_of_a_polynomial_at_58_points():
    """Two code words share 26 symbols at most, as any two polynomials of degree 26 do, over any field (Reed and Solomon 1960)."""
    points, point = [], 1
    for _ in range(58):
        points.append(point)
        point = field_product(point, 2)
    assert len(set(points)) == 58
    coefficients = np.random.default_rng(2).integers(0, 64, 27).tolist()
    message = np.array([coefficient >> bit & 1 for coefficient in coefficients for bit in range(6)], dtype=bool)
    word = (message.astype(int) @ generator()) % 2
    for place, at in enumerate(points):
        value = 0
        for coefficient in reversed(coefficients):  # Horner's rule
            value = field_product(value, at) ^ coefficient
        assert sum(int(bit) << order for order, bit in enumerate(word[11 * place : 11 * place + 6])) == value
    assert not generator()[:, 638:].any()


def test_code_words_differ_in_as_many_places_as_is_said():
    """The two parts of the product are tested above. Words of random data check both together."""
    assert DISTANCE == (58 - 27 + 1) * 4
    weights = bits(code_words(random_words(3, DATA_BITS, 64))).sum(axis=1)
    assert weights.min() >= DISTANCE  # of 4096 words; 319 ± 13 by chance


@pytest.mark.parametrize("words", [1, 127, 128, 300])
def test_encoding_is_the_product_with_the_generator(words):
    data = random_words(4, DATA_BITS, words)
    assert np.array_equal(bits(code_words(data)), bits(data).astype(np.float32) @ generator().astype(np.float32) % 2)


def test_turning_back_undoes_turning():
    columns = random_words(5, 192, 5)
    assert np.array_equal(turned_back(turned(columns)), columns)


# The store.


def reference_value(slots, at, key, shape):
    value = np.zeros(slots.shape[1], dtype=np.uint64)
    for sparse in at.sparse_RN[:, key]:
        value = value ^ slots[sparse]
    for place in range(8 * at.dense_ND.shape[1]):
        if at.dense_ND[key, place // 8] >> (place % 8) & 1:
            value = value ^ slots[shape.slots - shape.dense + place]
    return value


@given(keys=st.integers(1, 400), tight=st.booleans(), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_a_store_finds_the_value_of_every_key(keys, tight, seed):
    shape, points = StoreShape(keys=keys, tight=tight), np.random.default_rng(seed).integers(0, 256, (keys, 16), dtype=np.uint8)
    at, values = probes(points, shape, seed=b"s" * 16), random_words(seed, keys, 3)
    slots = store_of(values, at, shape)
    assert slots.shape == (shape.slots, 3)
    assert np.array_equal(looked_up(slots, at, shape), values)
    assert np.array_equal(reference_value(slots, at, keys - 1, shape), values[-1])


@pytest.mark.parametrize(
    ("keys", "slots", "regions", "dense"),
    [(1, 42, 0, 42), (87, 128, 0, 128), (88, 138, 8, 66), (1000, 1050, 8, 66), (4096, 4146, 8, 66)],
)
def test_a_tight_store_has_hardly_more_slots_than_keys(keys, slots, regions, dense):
    shape, points = StoreShape(keys=keys, tight=True), np.random.default_rng(3).integers(0, 256, (keys, 16), dtype=np.uint8)
    assert (shape.slots, shape.regions, shape.dense) == (slots, regions, dense)
    at = probes(points, shape, seed=b"s" * 16)
    assert at.sparse_RN.shape == (regions, keys)
    if regions:
        assert (at.sparse_RN // shape.per_region == np.arange(regions)[:, None]).all()
    bits_ND = np.unpackbits(at.dense_ND, axis=1, bitorder="little")
    assert not bits_ND[:, dense:].any()
    values = random_words(3, keys, 2)
    assert np.array_equal(looked_up(store_of(values, at, shape), at, shape), values)


def test_probes_are_blocks_of_aes_and_lie_in_their_regions():
    shape, points = StoreShape(keys=1000), np.random.default_rng(6).integers(0, 256, (1000, 16), dtype=np.uint8)
    at = probes(points, shape, seed=b"s" * 16)
    other = bytes([points[7, 0] ^ 1]) + points[7, 1:].tobytes()
    block = Cipher(algorithms.AES(b"s" * 16), modes.ECB()).encryptor().update(points[7].tobytes() + other)
    words = np.frombuffer(block, dtype="<u8")
    wide = shape.per_region
    expected = [((int(word) >> 12) * wide >> 52) + region * wide for region, word in enumerate(words[:3])]
    assert at.sparse_RN[:, 7].tolist() == expected
    assert at.dense_ND[7].tobytes() == block[24:30]
    assert (at.sparse_RN // shape.per_region == np.arange(3)[:, None]).all()


def test_keys_that_share_their_sparse_slots_are_told_apart_by_dense_ones():
    shape, keys = StoreShape(keys=30), 30
    sparse = np.repeat(np.arange(3, dtype=np.int32)[:, None] * shape.per_region, keys, axis=1)
    dense = np.random.default_rng(7).integers(0, 256, (keys, 6), dtype=np.uint8)
    at, values = Probes(sparse_RN=sparse, dense_ND=dense), random_words(7, keys, 3)
    assert np.array_equal(looked_up(store_of(values, at, shape), at, shape), values)


def test_keys_that_depend_on_each_other_have_no_store(monkeypatch):
    shape, points = StoreShape(keys=3), np.zeros((3, 16), dtype=np.uint8)
    at = probes(points, shape, seed=b"s" * 16)
    with pytest.raises(NoStore, match="depend on each other"):
        store_of(random_words(8, 3, 3), at, shape)
    tight = StoreShape(keys=3, tight=True)
    with pytest.raises(NoStore, match="2 of 3 keys depend on others"):
        store_of(random_words(8, 3, 3), probes(points, tight, seed=b"s" * 16), tight)
    monkeypatch.setattr(key_value, "MOST_LEFT", 2)
    with pytest.raises(NoStore, match="3 of 3 keys"):
        store_of(random_words(8, 3, 3), at, shape)


def log_even(balls, bins):
    """Return the logarithm of a bound on the chance that every bin has an even number of balls: balls! [z^balls] cosh(z)^bins /
    bins^balls.

    A coefficient is at most cosh(z)^bins / z^balls for every z; the best z is near where its derivative is 0.
    """
    best = np.full(len(balls), np.inf)
    for z in np.geomspace(1e-5, 1e4, 3000):
        log_cosh = z + np.log1p(np.exp(-2 * z)) - np.log(2)
        best = np.minimum(best, bins * log_cosh - balls * np.log(z))
    return np.minimum(gammaln(balls + 1) + best - balls * np.log(bins), 0.0)


@pytest.mark.parametrize("keys", [2, 10, 100, 1000, 10_000, 131_072])
def test_a_store_is_missing_by_less_than_two_to_the_minus_forty(keys):
    """If the sparse slots of a set of keys cancel, its keys depend on each other with a chance of 2^-48 over the dense slots.

    In such a set every slot occurs an even number of times. So the mean number of these sets is at most a sum over all sizes: the
    number of sets times the third power (three regions) of the chance that all bins have an even number of balls.
    """
    per_region = StoreShape(keys=keys).per_region
    sizes = np.arange(2, keys + 1, 2, dtype=np.float64)
    log_sets = gammaln(keys + 1) - gammaln(sizes + 1) - gammaln(keys - sizes + 1)
    mean = np.exp(log_sets + 3 * log_even(sizes, per_region)).sum()
    assert mean * 2.0**-DENSE < 2.0**-49.6  # 763 stores, of 50 million ids, stay below 2^-40


def log_all_even(balls, bins):
    """Return the logarithm of the chance that so many balls, an even number, fill bins evenly: 2^-bins sum_j (1 - 2 j /
    bins)^balls.
    """
    j = np.arange(bins + 1)
    ways = gammaln(bins + 1) - gammaln(j + 1) - gammaln(bins - j + 1) - bins * np.log(2)
    with np.errstate(divide="ignore"):
        return logsumexp(ways + balls[:, None] * np.log(abs(bins - 2 * j) / bins), axis=1)


@pytest.mark.parametrize("keys", [1, 10, 87, 88, 89, 95, 96, 150, 400, 1000, 2048, 3000, 4096])
def test_a_tight_store_is_missing_by_less_than_two_to_the_minus_forty_one(keys):
    """As for a wide store, over all subsets. If all slots are dense, each of 2^keys - 1 subsets cancels by 2^-dense."""
    shape = StoreShape(keys=keys, tight=True)
    if not shape.regions:
        assert keys - shape.dense <= -41
        return
    sizes = np.arange(2, keys + 1, 2, dtype=np.float64)
    log_sets = gammaln(keys + 1) - gammaln(sizes + 1) - gammaln(keys - sizes + 1)
    mean = logsumexp(log_sets + shape.regions * log_all_even(sizes, shape.per_region)) / np.log(2)
    assert mean - shape.dense < -41


def test_few_keys_are_left_to_eliminate():
    """90 stores. Of 14,440 with 20 to 134,036 keys, none had more than 4 left; elimination takes 2,000."""
    generator_ = np.random.default_rng(9)
    for keys in (200, 2000, 20_000):
        shape = StoreShape(keys=keys)
        for _ in range(30):
            at = generator_.integers(0, shape.per_region, (3, keys), dtype=np.int32)
            at += np.arange(3, dtype=np.int32)[:, None] * np.int32(shape.per_region)
            _, left = key_value._put_aside(at, slots=shape.slots)
            assert len(left) < 100


@pytest.mark.parametrize(("label", "feature"), [(10, 10), (10**6, 10**6), (10**3, 10**7), (10**7, 10**7)])
def test_no_bucket_overflows(label, feature):
    buckets = psi_malicious.buckets_of(label, feature)
    for ids in (label, feature):
        room, parts = buckets.room(ids), buckets.parts(ids)
        chance = 0.0 if room >= ids else parts * poisson.sf(room, ids / parts)
        assert chance < 2.0**-40


@pytest.mark.parametrize("ids", [10, 1000, 10**5, 10**6])
@pytest.mark.parametrize(("hashes", "times"), [(80, 2.0), (128, 4.2)])
def test_a_cheaters_store_holds_this_many_ids_and_no_more(ids, hashes, times):
    """Return for how many ids M slots can be right, if 2^hashes ids can be tried, by the formula of key_value.py."""
    slots = psi_malicious.store_shape(psi_malicious.buckets_of(ids, 10**6), ids).slots

    def possible(held):
        """Return the logarithm of the chance that any set of so many ids has a store: sets, seeds, and all equations right."""
        return held * log2(e * 2.0**hashes / held) + 128 - (held - slots) * DATA_BITS

    held = next(held for held in range(slots, 10**6) if possible(held) < -40)
    assert held < times * slots
    assert held > slots  # all slots can be filled without any search


def test_a_cheater_has_hardly_more_room_than_the_ids_that_it_announced():
    """Check the figures of docs/explanation/threat-model.md, for all sizes that a contract allows, and whatever the
    other side has.
    """
    sizes = [*range(1, 200), *np.geomspace(200, 5 * 10**7, 400).astype(int).tolist(), 4096, 4097, 65_536, 65_537]
    for ids in sizes:
        for others in (1, 10, 1000, 65_537, 10**6, 10**7, 5 * 10**7):
            most = psi_malicious.most_ids(ids, others)
            assert (
                ids < most <= (ids + 50 if ids <= 4096 else 1.36 * ids)
            )  # as alignment/linkages.py says, and alignment.security
    assert [psi_malicious.most_ids(ids, 10**6) for ids in (3, 10, 1000)] == [44, 51, 1050]
    assert psi_malicious.most_ids(10**5, 10**6) == pytest.approx(1.31 * 10**5, rel=0.01)
    assert psi_malicious.most_ids(10**6, 10**6) == pytest.approx(1.31 * 10**6, rel=0.01)


# The extension and its check.


def parts(seed=10):
    """Return both sides after base transfers, and the sender's choices."""
    seeds = np.random.default_rng(seed).integers(0, 256, (2, COLUMNS, 16), dtype=np.uint8)
    choices = np.random.default_rng(seed + 1).random(COLUMNS) < 0.5
    return CheckedReceiver(*seeds), CheckedSender(np.where(choices[:, None], seeds[1], seeds[0]), choices), choices


def ghash(key, blocks):
    """Compute GHASH by NIST SP 800-38D, sections 6.3 and 6.4: the reference, bit by bit, with additional data only."""
    h = int.from_bytes(Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(16)), "big")
    state = 0
    for block in [*blocks, (8 * 16 * len(blocks)).to_bytes(8, "big") + bytes(8)]:
        state ^= int.from_bytes(block, "big")
        product, v = 0, h
        for place in range(127, -1, -1):
            product ^= v * (state >> place & 1)
            v = (v >> 1) ^ (0xE1 << 120) * (v & 1)
        state = product
    return state


def test_a_hash_is_ghash_and_linear():
    key, columns = b"k" * 16, random_words(11, 3, 6)
    columns[2] = columns[0] ^ columns[1]
    first, second, both = hashed(columns, key=key)
    assert np.array_equal(first ^ second, both)
    blocks = [columns[0].tobytes()[start : start + 16] for start in range(0, 48, 16)]
    assert int.from_bytes(first.tobytes(), "big") == ghash(key, blocks) ^ ghash(key, [bytes(16)] * 3)


@pytest.mark.parametrize("slots", [1, 128, 200])
def test_the_extension_is_the_papers_bit_by_bit(slots):
    receiver, sender, choices = parts()
    for turn in range(2):  # streams go on for the next bucket
        data = random_words(12 + turn, slots, 3)
        sender.next_slots(receiver.next_slots(data, rng=RNG))
        words = np.unpackbits(data.view(np.uint8), axis=1, bitorder="little")[:, :DATA_BITS] @ generator().astype(int) % 2
        apart = np.unpackbits((receiver.inputs(slots) ^ sender.secrets(slots)).view(np.uint8), axis=1, bitorder="little")
        assert np.array_equal(apart, words * choices)
        assert np.array_equal(receiver.inputs(slots) ^ sender.offsets(data), sender.secrets(slots))
        assert sender.holds(receiver.answer(b"k" * 16), key=b"k" * 16)


def test_what_a_store_decodes_to_is_known_at_its_own_data_only():
    receiver, sender, _ = parts()
    shape, points = StoreShape(keys=50), np.random.default_rng(13).integers(0, 256, (60, 16), dtype=np.uint8)
    at, data = probes(points, shape, seed=b"s" * 16), random_words(13, 60, 3)
    own = Probes(sparse_RN=at.sparse_RN[:, :50], dense_ND=at.dense_ND[:50])
    sender.next_slots(receiver.next_slots(store_of(data[:50], own, shape), rng=RNG))
    known = looked_up(receiver.inputs(shape.slots), at, shape)
    evaluated = looked_up(sender.secrets(shape.slots), at, shape) ^ sender.offsets(data)
    apart = np.unpackbits((known ^ evaluated).view(np.uint8), axis=1).sum(axis=1, dtype=int)
    assert not apart[:50].any()
    # At other ids in half of the places where two code words differ: 160 ± 11, at least 64 except with a chance of 2^-60.
    assert (apart[50:] > 64).all()


def deviating(change, *, rows=200, answer=lambda answer: answer):
    """Tell whether a sender accepts corrections that ``change`` alters, for ten draws of its choices."""
    taken = []
    for seed in range(10):
        receiver, sender, choices = parts(100 + 2 * seed)
        sender.next_slots(change(receiver.next_slots(random_words(seed, rows, 3), rng=RNG)))
        taken.append((sender.holds(answer(receiver.answer(b"k" * 16)), key=b"k" * 16), choices))
    return taken


def flip(column, *places):
    def change(corrections):
        for place in places:
            corrections[column, place // 64] ^= np.uint64(1) << np.uint64(place % 64)
        return corrections

    return change


@pytest.mark.parametrize("places", [(0,), (199,), (3, 77, 150), tuple(range(0, 200, 3))])
def test_flipped_bits_of_one_column_pass_only_where_the_choice_is_guessed(places):
    """A cheater is caught if its guess, 0, is wrong. So a column costs a chance of one half, and reveals that bit."""
    draws = deviating(flip(5, *places))
    assert {choices[5] for _, choices in draws} == {False, True}
    for taken, choices in draws:
        assert taken == (not choices[5])


def test_many_flipped_columns_are_caught():
    def change(corrections):
        corrections[::20, 0] ^= np.uint64(1)
        return corrections

    assert not any(taken for taken, _ in deviating(change))  # 32 columns: one of ten draws passes with a chance of 2^-28


def test_a_row_that_is_no_code_word_and_hidden_in_other_data_is_caught():
    def change(corrections):
        corrections[:, 1] ^= random_words(14, COLUMNS)
        return corrections

    assert not any(taken for taken, _ in deviating(change))


def test_other_data_than_was_meant_are_data_like_any():
    """The receiver may change its data: what it sends is another code word, and is bound to it."""
    added = random_words(15, DATA_BITS, column_words(200))

    def answers(answer):
        answer[COLUMNS:] ^= hashed(added, key=b"k" * 16)
        return answer

    assert all(taken for taken, _ in deviating(lambda corrections: corrections ^ code_words(added), answer=answers))


def test_any_wrong_answer_is_caught():
    receiver, sender, _ = parts()
    sender.next_slots(receiver.next_slots(random_words(16, 100, 3), rng=RNG))
    right = receiver.answer(b"k" * 16)
    assert not sender.holds(receiver.answer(b"l" * 16), key=b"k" * 16)
    for row in (0, COLUMNS - 3, COLUMNS, COLUMNS + DATA_BITS - 1):
        wrong = right.copy()
        wrong[row, 3] ^= 1
        # A wrong hash of data passes only if no column that it is part of is chosen: some 160 of them.
        assert not sender.holds(wrong, key=b"k" * 16)


def test_hashes_of_data_are_as_random_for_other_data():
    """If all data are 0, every bit of 162 hashes is random, because the last block hides them. Bound: 6 deviations."""
    shares = np.zeros((DATA_BITS, 16), dtype=float)
    for draw in range(10):
        receiver, _, _ = parts(300 + draw)
        receiver.next_slots(np.zeros((500, 3), dtype=np.uint64), rng=RNG)
        shares += np.unpackbits(receiver.answer(b"k" * 16)[COLUMNS:], axis=1).reshape(DATA_BITS, 16, 8).mean(axis=2)
    total = shares.size * 8 * 10
    assert abs(shares.sum() / (shares.size * 10) - 0.5) < 6 * 0.5 / total**0.5
    assert (abs(shares / 10 - 0.5) < 6 * 0.5 / (8 * 10) ** 0.5).all()


def test_corrections_hide_the_data():
    """Corrections of data 0 and of data 1 everywhere have equally many ones. Bound: 6 deviations."""
    for value in (0, ~np.uint64(0)):
        receiver, _, _ = parts(400)
        ones = bits(receiver.next_slots(np.full((500, 3), value, dtype=np.uint64), rng=RNG)).mean(axis=0)
        assert (abs(ones - 0.5) < 6 * 0.5 / (64 * column_words(500)) ** 0.5).all()


def test_a_bucket_is_a_public_hash_of_an_id():
    hashes = psi_malicious._hashed(psi_malicious.Ids.of([b"%d" % n for n in range(1000)]), b"s" * 32)
    split = psi_malicious._in_buckets(hashes, 3, room=500, span=1)
    assert split.ends[-1] == 1000
    where = {row: number for number in range(3) for row in split.rows(number)}
    word = int.from_bytes(hashes[7, 24:32].tobytes(), "little")
    assert where[7] == (word >> 12) * 3 // 2**52
    assert all(abs(number - 333) < 6 * 15 for number in np.diff([0, *split.ends]))
    assert ceil(10**6 / psi_malicious.BUCKET_IDS) == psi_malicious.buckets_of(10, 10**6).count
