"""Messages of a head on shares that no party of this version sends are refused in a line that names the peer."""

import numpy as np
import pytest

from tallystick.errors import ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array, MalformedMessage, decode, encode
from tallystick.secret_sharing.share_messages import (
    Correction,
    EdgeShares,
    FeatureCount,
    FeatureCounts,
    HeadSizes,
    MaskedErrors,
    MaskedFeatures,
    MaskedScores,
    MaskedSteps,
    MaskedWeights,
    MaskSeed,
    ScoreShares,
    SharesKept,
    UnscoredRows,
    exchange_counts_feature_party,
    exchange_counts_label_party,
    receive_seed,
    receive_sizes,
    receive_unscored,
    receive_words,
)

WRONG = {
    "more rows": np.zeros((4, 2), dtype=np.int64),
    "fewer columns": np.zeros((3, 1), dtype=np.int64),
    "no rows": np.zeros((0, 2), dtype=np.int64),
    "another dimension": np.zeros((3, 2, 1), dtype=np.int64),
    "floats": np.zeros((3, 2), dtype=np.float64),
    "half the places": np.zeros((3, 2), dtype=np.int32),
}


def refused(receive, *messages):
    """Return the error of a call that receives these messages."""
    mine, theirs = memory_channels("here", "there", timeout_s=5)
    for message in messages:
        theirs.send(message)
    with pytest.raises(ProtocolError, match="there") as error:
        receive(mine)
    return str(error.value)


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(
    "made",
    [
        lambda words: MaskedFeatures(words=words),
        lambda words: MaskedWeights(words=words),
        lambda words: MaskedScores(words=words),
        lambda words: MaskedErrors(words=words),
        lambda words: MaskedSteps(words=words),
        lambda words: ScoreShares(words=words),
        lambda words: EdgeShares(words=words),
        lambda words: Correction(words=words),
    ],
)
def test_words_of_another_shape_or_type_are_refused(made, words):
    message = made(Array.of(words))
    assert type(message).__name__ in refused(lambda channel: receive_words(channel, type(message), 3, 2), message)


@pytest.mark.parametrize("seed", [b"", b"s" * 31, b"s" * 33])
def test_a_seed_of_another_length_is_refused(seed):
    assert f"a seed of {len(seed)} bytes; 32 are due" in refused(receive_seed, MaskSeed(seed=seed))


@pytest.mark.parametrize("columns", [0, -1, (1 << 16) + 1, (1 << 63) - 1])
def test_a_count_of_features_that_no_party_has_is_refused(columns):
    message = refused(lambda channel: exchange_counts_label_party([channel], 3, weighted=False), FeatureCount(columns=columns))
    assert f"brings {columns} features" in message
    counts = FeatureCounts(columns=(columns, 3), weighted=False)
    message = refused(lambda channel: exchange_counts_feature_party(channel, 3, place=1, parties=2), counts)
    assert f"brings {columns} features" in message


@pytest.mark.parametrize("counts", [(3,), (4, 5), (3, 5, 4), (4, 3, 3)])
def test_counts_of_other_parties_than_there_are_are_refused(counts):
    message = FeatureCounts(columns=counts, weighted=False)
    assert "2 parties of a head on shares bring" in refused(
        lambda channel: exchange_counts_feature_party(channel, 3, place=1, parties=2), message
    )


SIZES = {"training": 10, "scored": 5, "columns": (3, 4), "outputs": 1, "weighted": False}


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"training": -1}, "which no table needs"),
        ({"scored": 1 << 40}, "which no table needs"),
        ({"columns": (0, 4)}, "which no table needs"),
        ({"columns": (3, 1 << 20)}, "which no table needs"),
        ({"columns": (3,)}, "and there are 2 parties"),
        ({"columns": (3, 4, 5)}, "and there are 2 parties"),
        ({"outputs": 0}, "shares of 0 outputs"),
    ],
)
def test_sizes_that_no_table_has_are_refused_by_the_helper(changed, part):
    sizes = HeadSizes(**SIZES | changed)
    assert part in refused(lambda channel: receive_sizes(channel, [channel]), sizes, sizes)


@pytest.mark.parametrize("changed", [{"training": 11}, {"weighted": True}])
def test_parties_that_ask_for_different_shares_are_refused_by_the_helper(changed):
    pair = HeadSizes(**SIZES), HeadSizes(**SIZES | changed)
    refused(lambda channel: receive_sizes(channel, [channel]), *pair)


@pytest.mark.parametrize("marks", [[1, 0], [0, 1, 1, 0], [0, 2, 1], [0.0, 1.0, 1.0]])
def test_marks_that_are_not_one_of_each_row_are_refused(marks):
    dtype = np.float64 if 0.0 in marks and isinstance(marks[0], float) else np.uint8
    message = UnscoredRows(rows=Array.of(np.array(marks, dtype=dtype)))
    assert "UnscoredRows" in refused(lambda channel: receive_unscored(channel, 3), message)


def test_whether_shares_are_kept_is_yes_or_no():
    kept = encode(SharesKept(kept=True))
    assert decode(kept, SharesKept).kept
    with pytest.raises(MalformedMessage):
        decode(kept.replace(b"\xc3", b"\x02"), SharesKept)  # MessagePack's true, and a number in its place
