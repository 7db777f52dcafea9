"""Honest conversations, recorded: every role that listens to a peer, with what it heard, so that it can hear it again, spoilt."""

import queue
import random
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import union_helper, union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.benchmark.faults.ground import FEATURE, LABEL, LEDGER, PARTIES, Values, contract, party_values, tables
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import TallystickError
from tallystick.evaluation.private.bins import Population
from tallystick.evaluation.private.protocol import client, noisy_scores_client, noisy_scores_server, server
from tallystick.evaluation.private.scores import NoisyScores
from tallystick.evaluation.private.table import counting
from tallystick.job.handshake import ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.job import Job
from tallystick.job.log import Logbook, Silent
from tallystick.job.run import run_party
from tallystick.network.channel import Channel, MemoryChannel
from tallystick.party.folder import RunFolder
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.masks import MaskedTerms, exchange_keys, receive_sum
from tallystick.privacy.noise import SecureNoise

HELPER = "helper"
IDS = 60  # of a party that aligns
_ROWS = 70  # of a party in a whole job
_PATIENCE_S = 60.0

Channels = Mapping[str, Channel]
RoleFunction = Callable[[Channels, Path], Any]
"""Plays one party over its channels, in a folder of its own."""


class _Tape(queue.SimpleQueue[bytearray]):
    """A queue that keeps what went through it."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def put(self, item: bytearray, block: bool = True, timeout: float | None = None) -> None:
        self.kept.append(bytes(item))
        super().put(item, block, timeout)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A protocol: its roles, and what they start from on disk."""

    name: str
    roles: Mapping[str, RoleFunction]
    templates: Mapping[str, Path]  # by role; empty where it needs no folder
    whole_job: bool = False
    random_own: frozenset[str] = frozenset()
    """Roles whose own draws cannot be fixed: an honest replay may be refused."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A role of a scene, and what it heard from each peer."""

    scene: Scene
    role: str
    frames: Mapping[str, tuple[bytes, ...]]

    def replay(self, frames: Mapping[str, list[bytes]], folder: Path) -> Any:
        """Play the role again to peers that say these frames and then nothing more."""
        channels: dict[str, Channel] = {}
        for peer, said in frames.items():
            inbox: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
            for frame in said:
                inbox.put(bytearray(frame))
            channels[peer] = MemoryChannel(peer, inbox, cast("Any", _Sink()), timeout_s=0.0)
        return self.scene.roles[self.role](channels, folder)

    def folder(self, scratch: Path, mark: object) -> Path:
        """A fresh copy of what the role starts from."""
        folder = scratch / f"{self.scene.name}-{self.role}-{mark}"
        template = self.scene.templates.get(self.role)
        if template is None:
            folder.mkdir()
        else:
            shutil.copytree(template, folder)
        return folder


class _Sink:
    """Takes what a role says to nobody."""

    def put(self, item: bytearray) -> None:
        """Drop it."""


def converse(roles: Mapping[str, RoleFunction], folders: Mapping[str, Path]) -> dict[str, dict[str, tuple[bytes, ...]]]:
    """Let the roles talk, a thread each; gives what each heard from each peer. Raises the first error."""
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


def recorded(scratch: Path) -> list[Heard]:
    """Play every scene once and keep what each role heard."""
    found = []
    for scene in (*_small_scenes(), *_whole_jobs(scratch / "templates")):
        folders = {}
        for name in scene.roles:
            folders[name] = Heard(scene=scene, role=name, frames={}).folder(scratch, "recorded")
        heard = converse(scene.roles, folders)
        found += [Heard(scene=scene, role=name, frames=frames) for name, frames in heard.items() if frames]
    return found


def _fixed(name: str) -> SecureRandom:
    """A role's draws, the same whenever it is played: its recorded peers answered these."""
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
        "intersection": {
            LABEL: lambda channels, _: intersect_label_party(_ids(LABEL), [channels[FEATURE]], rng=_fixed(LABEL), threads=1),
            FEATURE: lambda channels, _: intersect_feature_party(_ids(FEATURE), channels[LABEL], rng=_fixed(FEATURE), threads=1),
        },
        "union": {
            LABEL: lambda channels, _: union_label_party(_ids(LABEL), channels[FEATURE], rng=_fixed(LABEL), threads=1),
            FEATURE: lambda channels, _: union_feature_party(_ids(FEATURE), channels[LABEL], rng=_fixed(FEATURE), threads=1),
        },
        "union with helper": {
            LABEL: lambda channels, _: union_with_helper_party(
                _ids(LABEL), channels[FEATURE], channels[HELPER], rng=_fixed(LABEL)
            ),
            FEATURE: lambda channels, _: union_with_helper_party(
                _ids(FEATURE), channels[LABEL], channels[HELPER], rng=_fixed(FEATURE)
            ),
            HELPER: lambda channels, _: union_helper(channels[LABEL], channels[FEATURE], rng=_fixed(HELPER)),
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
    return [
        Scene(name=name, roles=played, templates={}, random_own=frozenset(clients if name == "masked sum" else ()))
        for name, played in roles.items()
    ]


def _mismatch(work: Callable[[], Any]) -> None:
    """The honest end of two contracts that differ is an error; a spoilt one must be another or the same."""
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


# --- whole jobs: both parties keep an alignment of an interrupted run, so that what follows is the same every time

WHOLE_JOBS: dict[str, Values] = {
    "job, split by time": {"split__method": "time"},
    "job on a union": {"alignment__method": "union", "union": {"audit": False}},
    "job, pipelined and defended": {
        "training__mode": "pipelined",
        "training__starts": "secret",  # which a defence needs
        "defense": [{"method": "marvell", "power": 4}],
    },
}


def _whole_jobs(scratch: Path) -> list[Scene]:
    scenes = []
    for name, changes in WHOLE_JOBS.items():
        values = contract(training__epochs=1, training__checkpoint_every=2, evaluation__bootstrap=2, **changes)
        roles = {party_name: _job_role(party_name, values, resume=True) for party_name in PARTIES}
        templates = {party_name: scratch / name / party_name for party_name in PARTIES}
        for folder in templates.values():
            folder.mkdir(parents=True)
        Ledger.create(templates[LABEL] / LEDGER, party=LABEL)
        converse({party_name: _job_role(party_name, values, resume=False) for party_name in PARTIES}, templates)
        for folder in templates.values():
            (run,) = (folder / "runs").iterdir()
            shutil.rmtree(run / "checkpoints")
            shutil.rmtree(run / "baseline", ignore_errors=True)
            for stale in ("model.safetensors", "training.json", "result.json", "report.html", "scores.parquet"):
                (run / stale).unlink(missing_ok=True)
        scenes.append(Scene(name=name, roles=roles, templates=templates, whole_job=True))
    return scenes


def _job_role(name: str, values: Values, *, resume: bool) -> RoleFunction:
    agreed, frame = parse_contract(values), tables(_ROWS)[name]
    own = party_values(name, address="127.0.0.1:1")
    if agreed.split.method == "time" and name == LABEL:
        own["time"] = "day"

    def play(channels: Channels, folder: Path) -> Any:
        mine = parse_party(own, folder=folder)
        run = (RunFolder.latest if resume else RunFolder.new)(mine.runs, agreed, name)
        logbook = Logbook(party=name, watcher=Silent())
        return run_party(
            Job(contract=agreed, party=mine, frame=frame, channels=channels, folder=run, logbook=logbook, resume=resume)
        )

    return play
