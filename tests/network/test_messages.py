"""Messages are decoded as they were encoded, and bytes that are no message give only MalformedMessage."""

import tracemalloc
from typing import ClassVar

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.network.messages import (
    ALIGNMENT,
    BODY_LENGTH,
    MAX_DIMENSIONS,
    WIRE_VERSION,
    Array,
    Bulk,
    MalformedMessage,
    Message,
    Stopped,
    decode,
    encode,
    encode_parts,
    is_a,
)


class Parcel(Message, frozen=True):
    limit: ClassVar[int] = 10_000
    number: int
    text: str
    names: list[str]
    values: Array


class Other(Message, frozen=True):
    number: int


shapes = st.lists(st.integers(0, 6), max_size=MAX_DIMENSIONS).map(tuple)
dtypes = st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bool"])


@st.composite
def arrays(draw):
    shape, dtype = draw(shapes), np.dtype(draw(dtypes))
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), dtype=np.uint8)
    return (raw % 2 == 1).reshape(shape) if dtype.kind == "b" else raw.view(dtype).reshape(shape)


parcels = st.builds(
    lambda number, text, names, values: Parcel(number=number, text=text, names=names, values=Array.of(values)),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=50),
    st.lists(st.text(max_size=10), max_size=5),
    arrays(),
)


@given(parcels)
def test_what_goes_in_comes_out(parcel):
    payload = encode(parcel)
    assert payload == b"".join(encode_parts(parcel))
    found = decode(payload, Parcel)
    assert is_a(payload, Parcel)
    assert not is_a(payload, Other)
    assert (found.number, found.text, found.names) == (parcel.number, parcel.text, parcel.names)
    before, after = parcel.values.numpy(), found.values.numpy(*parcel.values.shape)
    assert before.dtype == after.dtype
    assert before.tobytes() == after.tobytes()


@given(st.binary(max_size=400))
@settings(max_examples=100)
def test_arbitrary_bytes_are_malformed(payload):
    with pytest.raises(MalformedMessage):
        decode(payload, Parcel)


@given(st.data(), parcels)
@settings(max_examples=150)
def test_a_changed_message_is_malformed_or_one_of_its_type(data, parcel):
    payload = bytearray(encode(parcel))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(payload) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if change == "flip":
            payload[place] = data.draw(st.integers(0, 255))
        elif change == "cut":
            del payload[place:]
        else:
            payload[place:place] = data.draw(st.binary(min_size=1, max_size=8))
        if not payload:
            break
    try:
        found = decode(bytes(payload), Parcel)
        assert isinstance(found, Parcel)
        found.values.numpy()
    except MalformedMessage:
        pass


def payload_of(kind, body, bulk=b""):
    """Return a payload with fields, and bytes behind them, that no encoder would write."""
    head = bytes((WIRE_VERSION, len(kind))) + kind + BODY_LENGTH.pack(len(body)) + body
    return head + bytes(-len(head) % ALIGNMENT) + bulk


def parcel_with(values):
    return msgspec.msgpack.encode({"number": 1, "text": "", "names": [], "values": values})


@pytest.mark.parametrize(
    "place",
    [[0, 9], [1, 8], [9, 0], [-1, 4], [4, -4], [0, 1 << 63], [True, 4], [0.0, 4], [0], [0, 4, 4], "04", None, b"1234", {}, 4],
)
def test_an_array_lies_within_the_bytes_that_came(place):
    assert (
        decode(payload_of(b"Parcel", parcel_with(["uint8", [4], [2, 4]]), b"12345678"), Parcel).values.numpy().tobytes()
        == b"3456"
    )
    with pytest.raises(MalformedMessage):
        decode(payload_of(b"Parcel", parcel_with(["uint8", [4], place]), b"12345678"), Parcel)


@pytest.mark.parametrize(
    "body",
    [
        parcel_with(["float32", [1 << 62], [0, 0]]),
        parcel_with(["float32", [1 << 40, 1 << 40], [0, 4]]),
        parcel_with(["float32", [1 << 40], [0, 1 << 42]]),
        b"\xdd\xff\xff\xff\xff",  # an array of 4 G elements, none of which came
        b"\xdf\xff\xff\xff\xff",  # a map of 4 G entries
        b"\x84\xa6number\x01\xa4text\xdb\xff\xff\xff\xff",  # a text of 4 GB
        b"\x84\xa6number\x01\xa5names\xdd\x7f\xff\xff\xff" + b"\xa0" * 100,
        b"\x91" * 5_000,  # nested five thousand deep
    ],
)
def test_a_lie_about_sizes_takes_no_memory(body):
    payload = payload_of(b"Parcel", body, b"1234")
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            decode(payload, Parcel).values.numpy()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


def test_decoding_an_array_copies_nothing():
    class Big(Message, frozen=True):
        limit: ClassVar[int] = 1 << 25
        values: Array

    payload = encode(Big(values=Array.of(np.ones(2_000_000))))
    tracemalloc.start()
    try:
        assert decode(payload, Big).values.numpy(2_000_000).sum() == 2_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


class Two(Message, frozen=True):
    first: Array
    second: Array


@pytest.mark.parametrize("second", [[0, 8], [4, 8], [7, 1]])
def test_no_two_arrays_share_bytes(second):
    def forged(place):
        fields = {"first": ["uint8", [8], [0, 8]], "second": ["uint8", [8], place]}
        return payload_of(b"Two", msgspec.msgpack.encode(fields), bytes(16))

    assert decode(forged([8, 8]), Two).second.numpy(8).tobytes() == bytes(8)
    with pytest.raises(MalformedMessage):
        decode(forged(second), Two)


@pytest.mark.parametrize("shape", [[0, 1 << 63], [0, 1 << 40, 1 << 40], [1] * 5, [0] * 100_000])
def test_a_shape_beyond_all_measure(shape):
    with pytest.raises(MalformedMessage) as caught:
        decode(payload_of(b"Parcel", parcel_with(["uint8", shape, [0, 0]])), Parcel).values.numpy()
    assert len(str(caught.value)) < 400


def test_over_the_limit_on_either_side():
    with pytest.raises(ValueError, match=r"Parcel of \d+ bytes is over its limit of 10000"):
        encode(Parcel(number=1, text="x" * 10_000, names=[], values=Array.of(np.zeros(0))))
    with pytest.raises(MalformedMessage, match="over its limit"):
        decode(payload_of(b"Parcel", parcel_with(["uint8", [10_100], [0, 10_100]]), bytes(10_100)), Parcel)
    with pytest.raises(MalformedMessage, match="cut short: 3 of 1000000 bytes of its fields"):
        decode(bytes((WIRE_VERSION, 6)) + b"Parcel" + BODY_LENGTH.pack(1_000_000) + b"abc", Parcel)


def test_another_type_version_or_field():
    payload = encode(Other(number=3))
    with pytest.raises(MalformedMessage, match="got a message of type b'Other' where Parcel is due"):
        decode(payload, Parcel)
    with pytest.raises(MalformedMessage, match=f"version {WIRE_VERSION + 1} is not spoken here"):
        decode(bytes((WIRE_VERSION + 1,)) + payload[1:], Other)
    extra = payload_of(b"Other", msgspec.msgpack.encode({"number": 3, "more": 1}))
    with pytest.raises(MalformedMessage, match="more"):
        decode(extra, Other)
    missing = payload_of(b"Other", msgspec.msgpack.encode({}))
    with pytest.raises(MalformedMessage, match="number"):
        decode(missing, Other)
    assert decode(encode(Stopped(reason="enough")), Other) == Stopped(reason="enough")


@pytest.mark.parametrize("cut", range(20))
def test_cut_short(cut):
    payload = encode(Stopped(reason="0123456789"))
    with pytest.raises(MalformedMessage):
        decode(payload[:cut], Stopped)


@pytest.mark.parametrize(
    ("shape", "asked", "message"),
    [
        ((2, 3), (2, 2), r"array has shape \(2, 3\), expected \(2, 2\)"),
        ((6,), (2, 3), r"expected \(2, 3\)"),
        ((2, 3), (None, 4), r"expected \('any', 4\)"),
        ((2, 2), (), "does not fit its 24 bytes"),
        ((-2, -3), (), "none negative"),
        ((1, 1, 1, 1, 6), (), "at most 4 dimensions"),
    ],
)
def test_a_shape_that_does_not_fit(shape, asked, message):
    array = Array("float32", shape, Bulk(memoryview(bytes(24))))
    with pytest.raises(MalformedMessage, match=message):
        array.numpy(*asked)


class Values(Message, frozen=True):
    values: Array


def received(message):
    """Return the message as a peer finds it, in a buffer that is aligned like the network's, and that buffer."""
    payload = encode(message)
    buffer = torch.empty(len(payload), dtype=torch.uint8).numpy()
    buffer[:] = np.frombuffer(payload, dtype=np.uint8)
    return decode(memoryview(buffer), Values), buffer


def test_tensors_keep_type_and_use_the_received_buffer():
    before = torch.arange(6, dtype=torch.float32).reshape(2, 3).T  # not contiguous
    message, buffer = received(Values(values=Array.of(before)))
    after = message.values.tensor(3, 2, dtype=torch.float32)
    assert torch.equal(before, after)
    assert after.data_ptr() % ALIGNMENT == 0
    assert 0 < after.data_ptr() - buffer.ctypes.data < buffer.nbytes
    with pytest.raises(MalformedMessage, match=r"type torch.float32, expected torch.int64"):
        message.values.tensor(dtype=torch.int64)


@pytest.mark.parametrize("shift", [1, 4])
def test_tensors_own_their_memory_where_the_buffer_is_not_theirs_to_use(shift):
    before = torch.arange(60, dtype=torch.float32)
    payload = bytearray(shift) + encode(Values(values=Array.of(before)))
    after = decode(memoryview(payload)[shift:], Values).values.tensor()
    after += 1
    assert torch.equal(decode(memoryview(payload)[shift:], Values).values.tensor(), before)


def test_an_array_is_copied_or_lent():
    values = torch.arange(6, dtype=torch.float32)
    copied, lent = Array.of(values), Array.lend(values)
    values += 1
    assert copied.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert lent.numpy().tolist() == [1, 2, 3, 4, 5, 6]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_pieces_arrive_as_one_array(rows):
    pieces = [torch.rand(count, 3) for count in rows]
    message, _ = received(Values(values=Array.lend(*pieces)))
    assert torch.equal(message.values.tensor(sum(rows), 3), torch.cat(pieces))
    assert torch.equal(torch.from_numpy(Array.lend(*pieces).numpy().copy()), torch.cat(pieces))
