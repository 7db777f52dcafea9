"""Every field of a peer's message is checked before it costs anything or is used. A ProtocolError names the message."""

import json
import math
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tiny import contract_values

import tallystick
from tallystick import __version__
from tallystick.alignment.exchange import Chunk, Size, receive_list, receive_size
from tallystick.config.contract import parse_contract
from tallystick.cut.cut_messages import CutEmbedding, CutGradient, receive_embedding, receive_gradient
from tallystick.dataset.intersection import SplitParts, receive_parts
from tallystick.errors import ContractMismatch, ProtocolError
from tallystick.evaluation.evaluation_messages import Finished, receive_finished
from tallystick.evaluation.private.protocol import NoisyScoreRows, PublicBins, PublicResult, client, noisy_scores_server
from tallystick.evaluation.private.ranks import TwoStatistics
from tallystick.evaluation.private.scores import NoisyScores
from tallystick.job.handshake import Agreement, ContractText, Greeting, ResumeState, shake_hands, shake_hands_label_party
from tallystick.network.channel import memory_channels
from tallystick.network.messages import MEBIBYTE, Array, Bulk
from tallystick.privacy.masks import Join, Term, exchange_keys, receive_sum
from tallystick.privacy.noise import SecureNoise
from tallystick.scoring.answering import receive_way
from tallystick.scoring.predict import UnionScores, receive_scores_message
from tallystick.scoring.scoring_messages import WayOfAsking
from tallystick.training.training_messages import CutWidth, ValidationDecision, receive_decision, receive_width

NAN, INF = math.nan, math.inf
RUN_ID, OTHER_RUN = "0123456789abcdef", "fedcba9876543210"
CONTRACT = parse_contract(contract_values(("bank", "shop")))
ENDED = {"rows": 9, "auc": 0.7, "low": 0.6, "high": 0.8, "epsilon": 1.0}
RESUMED = {"run_id": RUN_ID, "align": False, "resume_from": 5, "train": True}
STANDING = ResumeState(resume=True, run_id=RUN_ID, checkpoints=(5, 10))


def array(values, dtype="float32"):
    return Array.of(np.array(values, dtype=dtype))


def lying(*shape, dtype="float32", size=4):
    """Return an array whose bytes do not fill the shape that it names."""
    return Array(dtype, shape, Bulk(memoryview(bytes(size))))


def greeting(**changes):
    given = {"version": __version__, "contract_hash": CONTRACT.hash, "command": "run", "resume": True, "run_id": RUN_ID}
    given |= {"checkpoints": [5, 10], "trained": False, "complete": [], "start_from": "", "promoted": []}
    return Greeting(**{**given, "torch": "2", "numpy": "2", **changes})


def greeted(resume_state):
    def agree(channel):
        shake_hands(CONTRACT, resume_state, channel)

    return agree


def answered(channel):
    mechanism = TwoStatistics(epsilon=1)
    client(np.array([0, 1]), np.array([0.2, 0.8]), channel, mechanism=mechanism, noise=SecureNoise())


BINS = PublicBins(edges=array([0.5], "float64"), totals=array([1, 1], "int64"))
CUTS = [
    {"step": 5, "values": array(np.zeros((3, 2)))},
    {"step": -(2**62), "values": array(np.zeros((3, 2)))},
    {"step": 4, "values": array(np.zeros((2, 3)))},
    {"step": 4, "values": array(np.zeros((3, 2)), "float64")},
    {"step": 4, "values": lying(3, 2)},
    {"step": 4, "values": lying(1 << 40, 1 << 40)},
    {"step": 4, "values": lying(-3, -2, size=24)},
    {"step": 4, "values": array([[0, 0], [0, NAN], [0, 0]])},
]
HOSTILE = {
    CutEmbedding: (lambda channel: receive_embedding(channel, 4, 3, 2), [[CutEmbedding(**cut)] for cut in CUTS]),
    CutGradient: (lambda channel: receive_gradient(channel, 4, 3, 2), [[CutGradient(**cut)] for cut in CUTS]),
    CutWidth: (
        lambda channel: receive_width(channel, rows=256, max_message_bytes=64 * MEBIBYTE),
        [[CutWidth(width=width)] for width in (0, -1, (1 << 16) + 1, 10**9, 1 << 40, (1 << 63) - 1)],
    ),
    ValidationDecision: (
        lambda channel: receive_decision(channel, step=7, networks=3, first=True, may_stop=False),
        [
            [ValidationDecision(step=step, improved=improved, stop=stop)]
            for step, improved, stop in (
                (8, (True, True, True), False),
                (-1, (True, True, True), False),
                (1 << 62, (True, True, True), False),
                (7, (), False),
                (7, (True, True), False),
                (7, (True,) * 4, False),
                (7, (True,) * 17, False),
                (7, (True, 1, 1), False),
                (7, (True, False, True), False),
                (7, (True, True, True), True),
            )
        ],
    ),
    Finished: (
        lambda channel: receive_finished(channel, rows=9, epsilon=1.0),
        [
            [Finished(**{**ENDED, **changes})]
            for changes in (
                {"low": None, "high": None},
                {"low": None},
                {"auc": None},
                {"auc": NAN},
                {"auc": 0.5},
                {"high": 1.1},
                {"low": -INF},
                {"epsilon": None},
                {"epsilon": 1e-9},
                {"epsilon": NAN},
                {"rows": 10**12},
                {"rows": -1},
                {"auc": None, "low": None, "high": None, "epsilon": None},
            )
        ],
    ),
    UnionScores: (
        lambda channel: receive_scores_message(channel, 3),
        [
            [UnionScores(scores=scores)]
            for scores in (
                array([0.5, 0.5]),
                array([0.5, 0.5, NAN]),
                array([0.5, 0.5, 1.5]),
                array([0.5, 0.5, -INF]),
                array([[0.5], [0.5], [0.5]]),
                array([0.5, 0.5, 0.5], "float64"),
                lying(1 << 62),
            )
        ],
    ),
    SplitParts: (
        lambda channel: receive_parts(channel, 3),
        [
            [SplitParts(parts=parts)]
            for parts in (
                array([0, 1], "uint8"),
                array([0, 1, 3], "uint8"),
                array([0, 1, NAN]),
                array([0, 1, 2], "int64"),
                lying(3, dtype="int64"),
                lying(1 << 50, dtype="uint8"),
            )
        ],
    ),
    Agreement: (
        greeted(STANDING),
        [
            [greeting(), Agreement(**{**RESUMED, **changes})]
            for changes in (
                {"run_id": "../../etc"},
                {"run_id": "\x1b[2J" * 4},
                {"run_id": RUN_ID + "\n"},
                {"run_id": OTHER_RUN},
                {"align": True},
                {"align": True, "resume_from": 0, "train": False},
                {"resume_from": 7},
                {"resume_from": -5},
                {"resume_from": 1 << 62},
                {"train": False},
            )
        ],
    ),
    Greeting: (
        greeted(STANDING),
        [[greeting(version="\x1b]0;x\x07" * 999)], [greeting(command="\x1b[2J")], [greeting(command="x" * 10**6)]],
    ),
    PublicBins: (
        answered,
        [
            [PublicBins(edges=edges, totals=totals)]
            for edges, totals in (
                (array([NAN], "float64"), array([1, 1], "int64")),
                (array([INF, INF], "float64"), array([1, 1, 1], "int64")),
                (array([0.5], "float64"), array([NAN, 1], "float64")),
                (array([0.5], "float32"), array([1, 1], "int64")),
                (lying(1 << 50, dtype="float64"), array([1, 1], "int64")),
            )
        ],
    ),
    PublicResult: (
        answered,
        [
            [BINS, PublicResult(auc=auc, low=low, high=high)]
            for auc, low, high in ((NAN, 0, 1), (0.5, 0.6, 0.7), (2, 0, 3), (0.5, -INF, INF))
        ],
    ),
    NoisyScoreRows: (
        lambda channel: noisy_scores_server([channel], mechanism=NoisyScores(epsilon=1)),
        [
            [NoisyScoreRows(scores=scores, labels=labels)]
            for scores, labels in (
                (array([0, 1], "uint8"), array([0, 1], "bool")),
                (array([0.1, NAN], "float64"), array([0, 1], "bool")),
                (array([0.1, 0.2], "float64"), array([0, 1], "uint8")),
                (array([0.1, 0.2], "float64"), array([0, NAN])),
            )
        ],
    ),
    Size: (
        lambda channel: receive_size(channel, "ids", at_most=100),
        [[Size(of=of, rows=rows)] for of, rows in (("ids", 101), ("ids", -1), ("ids", 1 << 62), ("\x1b[2J" * 99, 5))],
    ),
    Chunk: (
        lambda channel: receive_list(channel, "tags", 3),
        [
            [Chunk(of=of, rows=rows)]
            for of, rows in (
                ("tags", array([1, 2], "uint8")),
                ("tags", array([1, 2, 3], "int64")),
                ("tags", lying(1 << 50, dtype="uint8")),
                ("\x1b[2J" * 99, array([1, 2, 3], "uint8")),
            )
        ],
    ),
    Join: (
        lambda channel: exchange_keys([channel, channel]),
        [[Join(public_key=key), Join(public_key=key)] for key in (b"", bytes(31), bytes(10**5))],
    ),
    Term: (
        lambda channel: receive_sum([channel], 2),
        [[Term(values=values)] for values in (array([1.0, NAN]), array([1], "int64"), lying(2, dtype="int64"))],
    ),
    WayOfAsking: (
        lambda channel: receive_way(channel, ("key", "window")),
        [[WayOfAsking(way=way)] for way in ("", "position", "\x1b[2J" * 99)],
    ),
}
# Other tests try the fields of these, with their protocols.
ELSEWHERE = {
    "KeyShare": "alignment/test_union.py",
    "TagsDigest": "alignment/test_deviating.py",
    "KeyShape": "alignment/test_similarity_messages.py",
    "LinksDigest": "alignment/test_similarity_messages.py",
    "Scale": "alignment/test_similarity_messages.py",
    "Texts": "alignment/test_similarity_messages.py",
    "Roster": "evaluation/private/test_private_protocol.py",
    "Hello": "network/test_sessions.py",
    "ShuffledColumns": "evaluation/test_importance.py",
    "SharedResults": "evaluation/test_sharing.py",
    "Refusal": "job/test_peer_words.py",
    "Stopped": "job/test_peer_words.py",
    "ContractText": "job/test_hostile_messages.py",
    "TuningTerms": "job/test_tuning.py",
    "NextTrial": "job/test_tuning.py",
    "Standing": "alignment/test_buckets.py",
    "LineProbe": "alignment/test_choice.py",
    "ProbeAnswer": "alignment/test_choice.py",
    "Choice": "alignment/test_choice.py",
    "Pace": "job/test_pace.py",
    "Table": "alignment/test_psi_oprf.py",
    "Proof": "alignment/test_psi_oprf.py",
    "CoinCommitment": "alignment/test_psi_malicious.py",
    "Coin": "alignment/test_psi_malicious.py",
    "StoreSeed": "alignment/test_psi_malicious.py",
    "CheckKey": "alignment/test_psi_malicious.py",
    "TagsCommitment": "alignment/test_psi_malicious.py",
    "OverlapGroups": "alignment/test_overlap.py",
    "OverlapCounts": "alignment/test_overlap.py",
    "ProgrammedTable": "alignment/switching/test_parts.py",
    "ProgrammedStore": "alignment/switching/test_parts.py",
    "RowQuestion": "scoring/test_asking.py",
    "RowAnswer": "scoring/test_asking.py",
    "ScoreQuestion": "scoring/test_asked_scores.py",
    "ScoreAnswer": "scoring/test_asked_scores.py",
    "AlignmentKept": "scoring/test_alignment_reuse.py",
    "AlignmentNext": "scoring/test_alignment_reuse.py",
    **dict.fromkeys(
        (
            *("MaskSeed", "FeatureCount", "HeadSizes", "Correction", "ScoreShares", "SharesKept", "EdgeShares"),
            *("UnscoredRows", "FeatureCounts"),
            *("MaskedFeatures", "MaskedWeights", "MaskedScores", "MaskedErrors", "MaskedSteps"),
        ),
        "secret_sharing/test_messages.py",
    ),
    "VersionsWanted": "serving/test_version_messages.py",
    "VersionsHeld": "serving/test_version_messages.py",
}


def test_every_message_of_the_house_is_tried():
    source = Path(tallystick.__file__).parent
    named = {name for path in source.rglob("*.py") for name in re.findall(r"^class (\w+)\(Message\b", path.read_text(), re.M)}
    assert named == {kind.__name__ for kind in HOSTILE} | set(ELSEWHERE)
    tests = Path(__file__).parents[1]
    for name, path in ELSEWHERE.items():
        assert re.search(rf"\b{name}\(", (tests / path).read_text()), name


CASES = [(kind, number) for kind, (_, cases) in HOSTILE.items() for number in range(len(cases))]


@pytest.mark.parametrize(("kind", "number"), CASES, ids=[f"{kind.__name__}-{number}" for kind, number in CASES])
def test_a_hostile_field_is_refused_by_name_before_it_costs(kind, number):
    receive, cases = HOSTILE[kind]
    own, theirs = memory_channels("shop", "bank", timeout_s=2)
    for message in cases[number]:
        theirs.send(message)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=r"^bank") as refused:
            receive(own)
        assert tracemalloc.get_traced_memory()[1] < 16 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert refused.value.peer == "bank"
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_honest_messages_pass():
    own, theirs = memory_channels("shop", "bank", timeout_s=2)
    for message in (CutWidth(width=1 << 16), ValidationDecision(step=7, improved=(True,), stop=True), Finished(**ENDED)):
        theirs.send(message)
    assert receive_width(own, rows=256, max_message_bytes=64 * MEBIBYTE) == 1 << 16
    assert receive_decision(own, step=7, networks=1, first=True, may_stop=True).improved == (True,)
    assert receive_finished(own, rows=9, epsilon=1.0) == Finished(**ENDED)
    theirs.send(Finished(rows=9, epsilon=1.0, reveals="\x1b[2Jnothing\u202e" * 999))  # the noise left no AUC
    reveals = receive_finished(own, rows=9, epsilon=1.0).reveals
    assert reveals.isprintable()
    assert len(reveals) <= 500
    theirs.send(Finished(rows=9))
    assert receive_finished(own, rows=9, epsilon=None) == Finished(rows=9)
    for message in (greeting(), Agreement(**RESUMED)):
        theirs.send(message)
    assert shake_hands(CONTRACT, STANDING, own).resume_from == 5
    for message in (greeting(), Agreement(run_id=OTHER_RUN, align=True, resume_from=0, train=True)):
        theirs.send(message)
    assert shake_hands(CONTRACT, STANDING, own).align


def test_a_helper_which_keeps_nothing_takes_any_start_of_a_run():
    own, theirs = memory_channels("helper", "bank", timeout_s=2)
    for message in (greeting(run_id=""), Agreement(**RESUMED)):
        theirs.send(message)
    assert not shake_hands(CONTRACT, ResumeState(resume=True), own, keeps=False).align


def test_steps_that_a_peer_makes_up_are_not_gone_on_from():
    own, theirs = memory_channels("bank", "shop", timeout_s=2)
    theirs.send(greeting(checkpoints=[-5, 7, 1 << 62]))
    assert shake_hands_label_party(CONTRACT, STANDING, {"shop": own}).resume_from == 0


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"k" * 500_000: [0] * 100_000}),  # as paths, 50 GB
        '{"a":' * 700 + "[" + "0," * 400_000 + "0]" + "}" * 700,
        json.dumps({"name": [0] * 300_000}),
        "[" * 500_000,
        "9" * 900_000,
        '"\\ud800',
    ],
    ids=["long key", "deep", "many", "too deep for JSON", "long number", "cut short"],
)
def test_a_contract_that_is_none_costs_little(text):
    own, theirs = memory_channels("bank", "shop", timeout_s=2)
    theirs.send(greeting(contract_hash="other"))
    theirs.send(ContractText(text=text))
    tracemalloc.start()
    try:
        with pytest.raises(ContractMismatch, match=r"^the contract differs from shop's") as refused:
            shake_hands_label_party(CONTRACT, STANDING, {"shop": own})
        assert tracemalloc.get_traced_memory()[1] < 128 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) <= 4000


def test_differences_are_printable():
    own, theirs = memory_channels("bank", "shop", timeout_s=2)
    theirs.send(greeting(contract_hash="other"))
    theirs.send(ContractText(text=json.dumps({"name": "\x1b[2Jall is well", "\x1b[31m": 1, "\ud800": 2})))
    with pytest.raises(ContractMismatch) as refused:
        shake_hands_label_party(CONTRACT, STANDING, {"shop": own})
    assert all(line.isprintable() for line in (str(refused.value), *refused.value.differences))
