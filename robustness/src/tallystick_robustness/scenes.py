"""Record honest conversations: every role that listens to a peer, and what it heard, so that it can hear it again, spoilt."""

import queue
import random
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from tallystick.alignment.exchange import MAX_ROWS
from tallystick.alignment.linkages import LINKAGES, AlignmentInput, HelperInput
from tallystick.alignment.outcome import SimilarityScale
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import TallystickError
from tallystick.evaluation.private.bins import Population
from tallystick.evaluation.private.protocol import client, noisy_scores_client, noisy_scores_server, server
from tallystick.evaluation.private.release_table import counting
from tallystick.evaluation.private.scores import NoisyScores
from tallystick.job.handshake import ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.job import ALL_PHASES, Job
from tallystick.job.log import Logbook
from tallystick.job.run import run_party
from tallystick.network.channel import Channel, MemoryChannel
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.masks import MaskedTerms, exchange_keys, receive_sum
from tallystick.privacy.noise import SecureNoise
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.keys import keys_of
from tallystick.watcher import Silent
from tallystick_robustness.fixture_job import FEATURE, HELPER, LABEL, LEDGER, PARTIES, Values, contract, party_values, tables

IDS = 60  # number of ids of a party that aligns
_ROWS = 70  # number of rows of a party in a whole job
_PATIENCE_S = 60.0

Channels = Mapping[str, Channel]
RoleFunction = Callable[[Channels, Path], Any]
"""A function that plays one party over its channels, in a folder of its own."""


class _Tape(queue.SimpleQueue[bytearray]):
    """A queue that keeps every item that went through it."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def put(self, item: bytearray, block: bool = True, timeout: float | None = None) -> None:
        self.kept.append(bytes(item))
        super().put(item, block, timeout)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Define a protocol: its roles, and the folders that they start from."""

    name: str
    roles: Mapping[str, RoleFunction]
    templates: Mapping[str, Path]  # template folders by role; empty if it needs none
    whole_job: bool = False
    random_own: frozenset[str] = frozenset()
    """Roles whose own draws cannot be fixed: an honest replay may be refused."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Keep a role of a scene, and what it heard from each peer."""

    scene: Scene
    role: str
    frames: Mapping[str, tuple[bytes, ...]]

    def replay(self, frames: dict[str, list[bytes]], folder: Path) -> Any:
        """Play the role again, to peers that send these frames and nothing more."""
        channels: dict[str, Channel] = {}
        silent: dict[str, list[bytes]] = {peer: [] for peer in self.scene.roles if peer != self.role}
        for peer, said in (silent | frames).items():
            inbox: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
            for frame in said:
                inbox.put(bytearray(frame))
            channels[peer] = MemoryChannel(peer, inbox, cast("Any", _Sink()), timeout_s=0.0)
        return self.scene.roles[self.role](channels, folder)

    def folder(self, scratch: Path, mark: object) -> Path:
        """Return a fresh copy of the folder that the role starts from."""
        folder = scratch / f"{self.scene.name}-{self.role}-{mark}"
        template = self.scene.templates.get(self.role)
        if template is None:
            folder.mkdir()
        else:
            shutil.copytree(template, folder)
        return folder


class _Sink:
    """Drop what a role says to nobody."""

    def put(self, item: bytearray) -> None:
        """Drop the item."""


def converse(roles: Mapping[str, RoleFunction], folders: Mapping[str, Path]) -> dict[str, dict[str, tuple[bytes, ...]]]:
    """Let the roles talk, one thread each, and return what each heard from each peer. Raises the first error."""
    tapes = {name: {peer: _Tape() for peer in roles if peer != name} for name in roles}
    channels: dict[str, dict[str, MemoryChannel]] = {
        name: {
            peer: MemoryChannel(peer, tapes[name][peer], tapes[peer][name], timeout_s=_PATIENCE_S)
            for peer in roles
            if peer != name
        }
        for name in roles
    }
    errors: list[Exception] = []

    def play(name: str) -> None:
        try:
            roles[name](channels[name], folders[name])
        except Exception as error:
            errors.append(error)
            for channel in channels[name].values():
                channel.abort(f"{name} failed: {error}")

    threads = [threading.Thread(target=play, args=(name,)) for name in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, TallystickError)), errors[0])
    return {name: {peer: tuple(tape.kept) for peer, tape in tapes[name].items() if tape.kept} for name in roles}


def general_scenes(scratch: Path) -> list[Scene]:
    """Build scenes of the protocols that most jobs have, and of such jobs."""
    return [*_small_scenes(), *_whole_jobs(scratch / "templates", WHOLE_JOBS)]


def method_scenes(scratch: Path) -> list[Scene]:
    """Build scenes of linking by similarity with its helper, and of jobs with similarity, importance, tuning or
    unaligned rows.
    """
    return [*_similarity_scenes(), *_whole_jobs(scratch / "templates", METHOD_JOBS)]


def recorded(scratch: Path, scenes: Sequence[Scene]) -> list[Heard]:
    """Play every scene once and keep what each role heard."""
    recordings = []
    for scene in scenes:
        folders = {}
        for name in scene.roles:
            folders[name] = Heard(scene=scene, role=name, frames={}).folder(scratch, "recorded")
        heard = converse(scene.roles, folders)
        recordings += [Heard(scene=scene, role=name, frames=frames) for name, frames in heard.items() if frames]
    return recordings


def _fixed(name: str) -> SecureRandom:
    """Return a random source that gives a role the same draws in every play, because its recorded peers answered these."""
    return SecureRandom(source=random.Random(name).randbytes)  # noqa: S311 - a recording, nothing to keep secret


def _ids(name: str) -> list[bytes]:
    first = 0 if name == LABEL else IDS // 2
    return [b"customer-%06d" % number for number in range(first, first + IDS)]


def _small_scenes() -> list[Scene]:
    agreed = parse_contract(contract())
    labels_N = np.arange(200) % 3 == 0
    scores_N = np.linspace(0, 1, 200)
    histogram, noisy = counting("label-histogram", epsilon=2.0, count=10), NoisyScores(epsilon=2.0)
    assumed = Population(rows=400, positive_rate=0.3)
    clients = ("north", "south")
    roles: dict[str, Mapping[str, RoleFunction]] = {
        "handshake": {
            LABEL: lambda channels, _: shake_hands_label_party(agreed, ResumeState(), channels),
            FEATURE: lambda channels, _: shake_hands(agreed, ResumeState(), channels[LABEL]),
        },
        "handshake of other contracts": {
            LABEL: lambda channels, _: _mismatch(lambda: shake_hands_label_party(agreed, ResumeState(), channels)),
            FEATURE: lambda channels, _: _mismatch(
                lambda: shake_hands(parse_contract(contract(seed=2)), ResumeState(), channels[LABEL])
            ),
        },
        "private AUC": {
            "server": lambda channels, _: server(list(channels.values()), mechanism=histogram, assumed=assumed),
            "north": lambda channels, _: client(labels_N, scores_N, channels["server"], mechanism=histogram, noise=SecureNoise()),
        },
        "noisy scores": {
            "server": lambda channels, _: noisy_scores_server(list(channels.values()), mechanism=noisy),
            "north": lambda channels, _: noisy_scores_client(
                labels_N, scores_N, channels["server"], mechanism=noisy, noise=SecureNoise()
            ),
        },
        "masked sum": {
            "server": lambda channels, _: _masked_server([channels[name] for name in clients]),
            **dict.fromkeys(clients, _masked_client),
        },
    }
    conversations = [
        Scene(name=name, roles=played, templates={}, random_own=frozenset(clients if name == "masked sum" else ()))
        for name, played in roles.items()
    ]
    linked = [_linked(method.replace("-", " "), method) for method in ("intersection", "union", "union-with-helper")]
    return conversations[:2] + linked + conversations[2:]


_NUMBER: Values = {"name": "place", "unit": "m", "low": -10.0, "high": 10.0}
_TERMS: Values = {"neighbors": 3, "deviation": 0.3, "failure": 0.3, "window": 0.5, "text_bits": 256}
_TUNED = "training.learning_rate"


def _similarity_scenes() -> list[Scene]:
    text = {"name": "title", "kind": "text"}
    return [
        _linked(name, "similarity", terms=SimilarityConfig.model_validate({**_TERMS, **changes}), old=old)
        for name, changes, old in (
            ("similarity by ranks, noisy", {"dimensions": [_NUMBER], "noise": {"tau": 0.5}, "keep": 2}, None),
            ("similarity by ranks and text in blocks", {"dimensions": [_NUMBER, text], "block": 1}, None),
            ("similarity by filters", {"dimensions": [_NUMBER], "helper_sees": "filters"}, None),
            ("similarity in the clear", {"dimensions": [_NUMBER, text], "helper_sees": "clear"}, None),
            ("similarity of new rows", {"dimensions": [_NUMBER]}, SimilarityScale(mean=-8.0, deviation=3.0, sigma=0.0)),
        )
    ]


def _linked(name: str, method: str, *, terms: SimilarityConfig | None = None, old: SimilarityScale | None = None) -> Scene:
    """Build an alignment from the product's roles. These terms are for similarity, and an old scale for new rows."""
    linkage, helper_party = LINKAGES[method], LINKAGES[method].helper_party

    def party(role: Callable[[AlignmentInput], Any], of: str, peer: str) -> RoleFunction:
        return lambda channels, _: role(
            AlignmentInput(
                ids=_ids(of),
                peers=[channels[peer]],
                rng=_fixed(of),
                max_rows=MAX_ROWS,
                local=LocalOptions(threads=1),
                name=of,
                similar=_keys(of, terms) if terms is not None else None,
                terms=terms,
                scales={FEATURE: old} if old is not None and of == LABEL else {},
                helper=channels.get(HELPER),
            )
        )

    roles = {LABEL: party(linkage.label_party, LABEL, FEATURE), FEATURE: party(linkage.feature_party, FEATURE, LABEL)}
    if helper_party is not None:
        roles[HELPER] = lambda channels, _: helper_party(
            HelperInput(label=channels[LABEL], features=[channels[FEATURE]], rng=_fixed(HELPER), max_rows=MAX_ROWS, terms=terms)
        )
    return Scene(name=name, roles=roles, templates={})


def _keys(of: str, terms: SimilarityConfig) -> SimilarKeys:
    values_R = np.random.default_rng(IDS if of == LABEL else 2 * IDS).normal(0, 2, IDS).clip(-10, 10)
    texts = tuple(tuple(f"{value:.0f} title" for value in values_R) for _ in terms.texts)
    return SimilarKeys(numbers_RD=values_R[:, None], texts=texts)


def _mismatch(work: Callable[[], Any]) -> None:
    """Expect the error of two different contracts. A spoilt contract must be another one or the same."""
    try:
        work()
    except TallystickError as error:
        if type(error).__name__ != "ContractMismatch":
            raise


def _masked_server(channels: list[Channel]) -> Any:
    exchange_keys(channels)
    return receive_sum(channels, 8)


def _masked_client(channels: Channels, _folder: Path) -> None:
    MaskedTerms(channels["server"]).send(np.arange(8))


# --- whole jobs: both parties keep an alignment of an interrupted run, so that the rest is the same every time

WHOLE_JOBS: dict[str, Values] = {
    "job, split by time": {"split__method": "time"},
    "job on a union": {"alignment__method": "union", "union": {"audit": False}},
    "job, pipelined and defended": {
        "training__mode": "pipelined",
        "training__starts": "secret",  # a defence needs it
        "defense": [{"method": "marvell", "power": 4}],
    },
}


METHOD_JOBS: dict[str, Values] = {
    "job by similarity": {
        "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}, HELPER: {"role": "helper"}},
        "alignment": {"method": "similarity", "similarity": {**_TERMS, "dimensions": [_NUMBER]}},
    },
    "job with importance": {"evaluation__importance": {"feature_columns": "both", "repeats": 1, "rows": 20}},
    "job that tunes": {"tuning": {"trials": 2, "keys": {_TUNED: {"low": 0.001, "high": 0.1}}}},
    **{
        f"job with unaligned rows, {method}": {"unaligned": {"method": method, **quick}}
        for method, quick in (
            ("warm-start", {"epochs": 1}),
            ("diffu-at", {"epochs": 1}),
            ("fedcvt", {}),
            ("fedhssl", {"epochs": 1}),
            ("vfl-mpd", {}),
        )
    },
}
KEPT = ("format", "contract.json", "origin.json", "alignment.safetensors")
"""Files that stay of a first run, so that its alignment need not be drawn again."""


def _whole_jobs(scratch: Path, jobs: Mapping[str, Values]) -> list[Scene]:
    scenes = []
    for name, changes in jobs.items():
        values = contract(training__epochs=1, training__checkpoint_every=2, evaluation__bootstrap=2, **changes)
        parties = list(parse_contract(values).parties)
        roles = {party_name: _job_role(party_name, values, resume=True) for party_name in parties}
        templates = {party_name: scratch / name / party_name for party_name in parties}
        for folder in templates.values():
            folder.mkdir(parents=True)
        Ledger.create(templates[LABEL] / LEDGER, party=LABEL)
        converse({party_name: _job_role(party_name, values, resume=False) for party_name in parties}, templates)
        for folder in templates.values():
            (run,) = (folder / "runs").iterdir()
            for stale in run.iterdir():
                if stale.is_dir():
                    shutil.rmtree(stale)
                elif not stale.name.startswith(KEPT):
                    stale.unlink()
        scenes.append(Scene(name=name, roles=roles, templates=templates, whole_job=True))
    return scenes


def _job_role(name: str, values: Values, *, resume: bool) -> RoleFunction:
    agreed = parse_contract(values)
    frame = tables(_ROWS)[name] if name in PARTIES else pl.DataFrame()
    own = party_values(name, address="127.0.0.1:1")
    if agreed.split.method == "time" and name == LABEL:
        own["time"] = "day"
    if agreed.linkage.similar and name != HELPER:
        own["keys"] = {_NUMBER["name"]: "x"}
    if "tuning" in values:
        own["tuning"] = {"allow": [_TUNED]}
    if name == HELPER:
        own.pop("listen")
    command, phases = ("tune", ("alignment", "tuning")) if "tuning" in values else ("run", ALL_PHASES)
    use = command if command == "tune" else ""

    def play(channels: Channels, folder: Path) -> Any:
        own_party = parse_party(own, folder=folder)
        run = (RunFolder.latest if resume else RunFolder.new)(own_party.runs, agreed, name, use=use, key=own_party.run_key)
        logbook = Logbook(party=name, watcher=Silent())
        return run_party(
            Job(
                contract=agreed,
                party=own_party,
                frame=frame,
                keys=keys_of(frame, own_party, agreed.alignment) if name != HELPER else None,
                channels=channels,
                folder=run,
                logbook=logbook,
                command=command,
                resume=resume,
                phases=phases,
            )
        )

    return play
