"""Compare the group with RFC 9496's vectors and with the group's laws; test keys and shuffles."""

import ctypes.util
import importlib.util
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.alignment import group as bundled
from tallystick.alignment.group import Scalar, hash_to_group, multiply
from tallystick.alignment.matching import DuplicateTags, are_distinct_indices, match
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.sodium import VARIABLE
from tallystick.errors import ConfigError

RNG = SecureRandom(source=np.random.default_rng(1).bytes)

# RFC 9496, appendix A.1: the first multiples of the generator, from 1.
MULTIPLES_OF_GENERATOR = [
    "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76",
    "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
    "da80862773358b466ffadfe0b3293ab3d9fd53c5ea6c955358f568322daf6a57",
    "e882b131016b52c1d3337080187cf768423efccbb517bb495ab812c4160ff44e",
    "f64746d3c92b13050ed8d80236a7f0007c3b3f962f5ba793d19a601ebb1df403",
    "44f53520926ec81fbd5a387845beb7df85a96a24ece18738bdcfa6a7822a176d",
    "903293d8f2287ebe10e2374dc1a53e0bc887e592699f02d077d5263cdd55601c",
    "02622ace8f7303a31cafc63f8fc48fdc16e1c8c8d234b2f0d6685282a9076031",
    "20706fd788b2720a1ed2a5dad4952b01f413bcf0e7564de8cdc816689e2db95f",
    "bce83f8ba5dd2fa572864c24ba1810f9522bc6004afe95877ac73241cafdab42",
    "e4549ee16b9aa03099ca208c67adafcafa4c3f3e4e5303de6026e3ca8ff84460",
    "aa52e000df2e16f55fb1032fc33bc42742dad6bd5a8fc0be0167436c5948501f",
    "46376b80f409b29dc2b5f6f0c52591990896e5716f41477cd30085ab7f10301e",
    "e0c418f7c8d9c4cdd7395b93ea124f3ad99021bb681dfc3302a9d99a2e53e64e",
]

# RFC 9496, appendix A.2: non-canonical field elements, negative ones, non-squares, negative xy, s = -1.
BAD_ENCODINGS = [
    "00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",
    "c34c4e1826e5d403b78e246e88aa051c36ccf0aafebffe137d148a2bf9104562",
    "c940e5a4404157cfb1628b108db051a8d439e1a421394ec4ebccb9ec92a8ac78",
    "47cfc5497c53dc8e61c91d17fd626ffb1c49e2bca94eed052281b510b1117a24",
    "f1c6165d33367351b0da8f6e4511010c68174a03b6581212c71c0e1d026c3c72",
    "87260f7a2f12495118360f02c26a470f450dadf34a413d21042b43b9d93e1309",
    "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    "4eac077a713c57b4f4397629a4145982c661f48044dd3f96427d40b147d9742f",
    "de6a7b00deadc788eb6b6c8d20c0ae96c2f2019078fa604fee5b87d6e989ad7b",
    "bcab477be20861e01e4a0e295284146a510150d9817763caf1a6f4b422d67042",
    "2a292df7e32cababbd9de088d1d1abec9fc0440f637ed2fba145094dc14bea08",
    "f4a9e534fc0d216c44b218fa0c42d99635a0127ee2e53c712f70609649fdff22",
    "8268436f8c4126196cf64b3c7ddbda90746a378625f9813dd9b8457077256731",
    "2810e5cbc2cc4d4eece54f61c6f69758e289aa7ab440b3cbeaa21995c2f4232b",
    "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",
    "a45fdc55c76448c049a1ab33f17023edfb2be3581e9c7aade8a6125215e04220",
    "d483fe813c6ba647ebbfd3ec41adca1c6130c2beeee9d9bf065c8d151c5f396e",
    "8a2e1d30050198c65a54483123960ccc38aef6848e1ec8f5f780e8523769ba32",
    "32888462f8b486c68ad7dd9610be5192bbeaf3b443951ac1a8118419d9fa097b",
    "227142501b9d4355ccba290404bde41575b037693cef1f438c47f8fbf35d1165",
    "5c37cc491da847cfeb9281d407efc41e15144c876e0170b499a96a22ed31e01e",
    "445425117cb8c90edcbc7c1cc0e74f747f2c1efa5630a967c64f287792a48a4b",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]

# RFC 9496, appendix A.3: SHA-512 of a text, mapped to the group.
HASHED_TEXTS = [
    (
        "Ristretto is traditionally a short shot of espresso coffee",
        "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46",
    ),
    (
        "made with the normal amount of ground coffee but extracted with",
        "f26e5b6f7d362d2d2a94c5d0e7602cb4773c95a2e5c31a64f133189fa76ed61b",
    ),
    (
        "about half the amount of water in the same amount of time",
        "006ccd2a9e6867e6a2c5cea83d3302cc9de128dd2a9a57dd8ee7b9d7ffe02826",
    ),
    (
        "by using a finer grind.",
        "f8f0c87cf237953c5890aec3998169005dae3eca1fbb04548c635953c817f92a",
    ),
    (
        "This produces a concentrated shot of coffee per volume.",
        "ae81e7dedf20a497e10c304a765c1767a42d6e06029758d2d7e8ef7cc4c41179",
    ),
]


def rows(*encodings):
    return np.frombuffer(b"".join(encodings), dtype=np.uint8).reshape(-1, 32)


def group_over(choice):
    """Return the group's module, loaded once more, over the given libsodium."""
    spec = importlib.util.spec_from_file_location(f"group_over_{choice}", bundled.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, choice)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["bundled", "system"])
def group(request):
    if request.param == "system" and ctypes.util.find_library("sodium") is None:
        pytest.skip("this system has no libsodium of its own (Debian: libsodium23)")
    return group_over(request.param)


def test_multiples_of_the_generator(group):
    generator = rows(bytes.fromhex(MULTIPLES_OF_GENERATOR[0]))
    for factor, expected in enumerate(MULTIPLES_OF_GENERATOR, start=1):
        assert group.multiply(generator, group.Scalar(factor.to_bytes(32, "little"))).tobytes().hex() == expected


@pytest.mark.parametrize("encoding", [*BAD_ENCODINGS, bytes(32).hex()])
def test_bad_encodings_and_the_identity_are_refused(encoding, group):
    good = bytes.fromhex(MULTIPLES_OF_GENERATOR[3])
    with pytest.raises(group.InvalidElement) as caught:
        group.multiply(rows(good, good, bytes.fromhex(encoding), good), RNG.scalar())
    assert caught.value.index == 2


@pytest.mark.parametrize("operation", ["multiply", "add", "subtract"])
@pytest.mark.parametrize("encoding", MULTIPLES_OF_GENERATOR)
def test_an_encoding_with_the_top_bit_set_is_refused_whatever_the_library(encoding, operation, group):
    """RFC 9496, section 4.3.1: a field element is below 2^255. The libsodium in rbcl's wheel ignores the bit."""
    good = bytes.fromhex(encoding)
    batch = rows(good, good, bytes([*good[:-1], good[-1] | 0x80]), good)
    others = RNG.scalar() if operation == "multiply" else rows(good, good, good, good)
    with pytest.raises(group.InvalidElement) as caught:
        getattr(group, operation)(batch, others)
    assert caught.value.index == 2


def test_hashing_is_the_published_map_behind_a_domain_prefix(group, monkeypatch):
    texts = [text.encode() for text, _ in HASHED_TEXTS]
    tagged = group.hash_to_group([b"%d" % number for number in range(3)])
    monkeypatch.setattr(group, "DOMAIN", b"")
    assert [row.tobytes().hex() for row in group.hash_to_group(texts)] == [expected for _, expected in HASHED_TEXTS]
    prefixed = group.hash_to_group([bundled.DOMAIN + b"%d" % number for number in range(3)])
    assert np.array_equal(tagged, prefixed)


@settings(max_examples=100)
@given(st.binary(max_size=40), st.binary(min_size=64, max_size=64), st.binary(min_size=64, max_size=64))
def test_both_libraries_compute_the_same(group, identifier, wide, other):
    points = group.hash_to_group([identifier])
    assert np.array_equal(points, hash_to_group([identifier]))
    theirs = group.Scalar.reduced(wide) * group.Scalar.reduced(other)
    ours = Scalar.reduced(wide) * Scalar.reduced(other)
    assert theirs._buffer.raw == ours._buffer.raw
    if not ours.is_zero():
        assert np.array_equal(group.multiply(points, theirs), multiply(points, ours))


def test_the_libsodium_is_the_one_asked_for_and_is_named(group):
    asked = "of the system" if "system" in group.__name__ else "in the wheel of rbcl"
    assert asked in group.SODIUM.origin


@pytest.mark.parametrize(("choice", "said"), [("/nowhere/libsodium.so", "or the path"), ("libc.so.6", "sodium_version")])
def test_a_library_that_cannot_be_used_is_refused_by_name(choice, said):
    with pytest.raises(ConfigError, match=said) as caught:
        group_over(choice)
    assert f"{VARIABLE}={choice}" in str(caught.value)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_keys_commute_and_multiply(ids):
    points, first, second = hash_to_group(ids), RNG.scalar(), RNG.scalar()
    one_way = multiply(multiply(points, first), second)
    assert np.array_equal(one_way, multiply(multiply(points, second), first))
    assert np.array_equal(one_way, multiply(points, first * second))


def test_a_view_that_is_not_contiguous_is_read_right():
    points, key = hash_to_group([b"%d" % n for n in range(10)]), RNG.scalar()
    assert np.array_equal(multiply(points[::-2], key), multiply(points, key)[::-2])
    with pytest.raises(ValueError, match="uint8"):
        multiply(points[:, :16], key)


def test_a_scalar_is_reduced_modulo_the_order_and_stays_secret():
    order = 2**252 + 27742317777372353535851937790883648493
    wide = bytes(range(64))
    reduced = (int.from_bytes(wide, "little") % order).to_bytes(32, "little")
    points = hash_to_group([b"x"])
    assert np.array_equal(multiply(points, Scalar.reduced(wide)), multiply(points, Scalar(reduced)))
    scalar = Scalar(reduced)
    assert repr(scalar) == str(scalar) == "Scalar(secret)"
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(scalar)


def test_zero_is_drawn_again():
    draws = iter([bytes(64), b"\x05" + bytes(63)])
    scalar = SecureRandom(source=lambda _: next(draws)).scalar()
    assert multiply(rows(bytes.fromhex(MULTIPLES_OF_GENERATOR[0])), scalar).tobytes().hex() == MULTIPLES_OF_GENERATOR[4]


def test_permutations_are_uniform():
    # Chi-square over the 24 orders of 4: mean 23, and above 80 with a chance below 1e-7.
    counts = dict.fromkeys(range(256), 0)
    for _ in range(2400):
        counts[int(np.dot(RNG.permutation(4), [64, 16, 4, 1]))] += 1
    seen = [count for count in counts.values() if count]
    assert len(seen) == 24
    assert sum((count - 100) ** 2 / 100 for count in seen) < 80
    assert sorted(RNG.permutation(1000)) == list(range(1000))
    assert {RNG.below(3) for _ in range(100)} == {0, 1, 2}  # misses one with a chance of 3 * (2/3)^100 < 1e-16


TAGS = st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=20)


@settings(max_examples=100, deadline=None)
@given(TAGS, TAGS, TAGS)
def test_matching_finds_what_a_dictionary_finds(first, second, common):
    left, right = list({*first, *common}), list({*second, *common})
    left_K, right_K = match(*(np.frombuffer(b"".join(tags), dtype=np.uint8).reshape(-1, 16) for tags in (left, right)))
    places = {tag: place for place, tag in enumerate(right)}
    expected = {(row, places[tag]) for row, tag in enumerate(left) if tag in places}
    assert set(zip(left_K.tolist(), right_K.tolist(), strict=True)) == expected


@pytest.mark.parametrize(("left", "right", "side"), [("aab", "c", 0), ("ab", "bb", 1), ("aa", "a", 0), ("", "cc", 1)])
def test_matching_refuses_duplicates(left, right, side):
    tags = [np.repeat(np.frombuffer(text.encode(), dtype=np.uint8)[:, None], 16, axis=1) for text in (left, right)]
    with pytest.raises(DuplicateTags) as caught:
        match(*tags)
    assert (caught.value.side, caught.value.count) == (side, 1)


def test_distinct_indices():
    for indices, expected in (([], True), ([2, 0], True), ([0, 0], False), ([3], False), ([-1], False)):
        assert are_distinct_indices(np.array(indices, dtype=np.int64), 3) is expected


def test_where_no_folder_takes_the_bundled_library_one_line_says_what_to_do(tmp_path):
    """In this process no file may grow beyond 64 KiB, as on a full disk; rbcl unpacks some 2.8 MB."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "from tallystick.errors import ConfigError\n"
        "try:\n    import tallystick.alignment.group\n"
        "except ConfigError as error:\n    print(error); sys.exit(2)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")
    (line,) = done.stdout.splitlines()
    assert "set TMPDIR to a folder" in line
    assert f"{VARIABLE}=system" in line
    assert list(tmp_path.iterdir()) == []


def test_a_umask_that_takes_this_users_own_rights_is_named(tmp_path):
    program = (
        "import os, tempfile\nfrom tallystick.errors import ConfigError\n"
        "def refused(*_, **__): raise PermissionError(13, 'Permission denied')\n"
        "tempfile.TemporaryDirectory = refused\nos.umask(0o777)\n"
        "try:\n    import tallystick.alignment.group\nexcept ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("the umask is 0777, so this user may not use files that it makes; set another one")
