"""Decide which trained run is in use: each party promotes runs for itself, and a run is in use when all have promoted it.

A party's promotions are a list, newest first; rollback removes the newest. Parties exchange these lists in the handshake of
each command that uses a model, and use the first run on the label party's list that is on all others, too. So no party uses a
run that it did not promote.

When all parties have named the same candidate, serving scores with it, too (``serving/shadow.py``).

Each run has a commitment to this party's half of it (model, encoder, coding of labels): BLAKE2b with a key of 32 secret bytes,
so it reveals nothing about the half. The label party hashes all commitments into the version, and every party keeps the first
version that it sees: a different half under the same run id is refused.

Without gradients a promotion by the label party only means that the run's embeddings have arrived. So its commitment contains
neither its model nor its coding of labels, and each command that uses a model calls ``require_usable`` before it calls a peer.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError, PeerError, StorageError
from tallystick.job.handshake import PromotedHalf
from tallystick.job.promotion import enter_choice, was_decided
from tallystick.job.run_selection import named_run, require_complete, require_trained
from tallystick.results import read_result
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.storage import locked, make_folders, read_own, write_bytes

_FOLDER = "promoted"
MOST_PROMOTED = 20  # the most runs that peers hear of


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run that this party promoted.

    Args:
        run_id: of the run.
        contract: the hash of its contract at the time of the run.
        when: UTC.
        key: the commitment's key: 32 secret bytes in hex.
        commitment: to this party's half.
        version: the hash of all parties' halves; empty until all have promoted the run.
    """

    run_id: str
    contract: str
    when: str
    key: str
    commitment: str
    version: str = ""


class _Promotions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of promotions under a contract's name, newest first. It also has promotions of other texts of that contract."""

    promoted: list[Promotion] = []
    candidate: Promotion | None = None
    withdrawn: list[Promotion] = []  # a run that is promoted again keeps its version

    def with_run(self, run_id: str) -> Promotion | None:
        """Return this party's promotion of a run."""
        promotions = [*self.promoted, *([self.candidate] if self.candidate is not None else []), *self.withdrawn]
        return next((each for each in promotions if each.run_id == run_id), None)

    def withdrawing(self, promotion: Promotion | None) -> list[Promotion]:
        """Return the withdrawn promotions, with this one added if it is not None."""
        return [promotion, *_without(promotion, self.withdrawn)][:MOST_PROMOTED] if promotion is not None else self.withdrawn


@dataclass(frozen=True, kw_only=True)
class Versions:
    """A party's promotions under a contract, kept next to its run folders."""

    contract: Contract
    party: PartyFile

    @property
    def path(self) -> Path:
        """Return the file that keeps them."""
        return self.party.runs / _FOLDER / self.contract.name / "promoted.json"

    def promoted(self) -> list[Promotion]:
        """List the promotions of this contract's runs, newest first. Raises StorageError for a damaged file."""
        return [each for each in self._all().promoted if self._is_ours(each)]

    def candidate(self) -> Promotion | None:
        """Return the candidate, which serving may score as well as the run in use. Raises StorageError for a damaged file."""
        promotion = self._all().candidate
        return promotion if promotion is not None and self._is_ours(promotion) else None

    def _is_ours(self, promotion: Promotion) -> bool:
        """Tell whether a promoted run is of this contract."""
        return promotion.contract == self.contract.hash

    def _all(self) -> _Promotions:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_Promotions)
        except FileNotFoundError:
            return _Promotions()
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(
                f"{self.path}: cannot be read ({error}); move it away, and promote the run in use again on this side"
            ) from None

    def halves(self) -> tuple[PromotedHalf, ...]:
        """Return what the others learn about the intact promotions, newest first."""
        return tuple(_half(each) for each in self.intact())

    def candidate_half(self) -> PromotedHalf | None:
        """Return what the others learn about the candidate, or None if there is none, or its half has changed."""
        candidate = self.candidate()
        return _half(candidate) if candidate is not None and self._is_intact(candidate) else None

    def promote(self, name: str) -> Promotion:
        """Promote a complete run, by id, folder name or path. Raises ConfigError if there is none, or it is the newest
        promotion already.
        """
        folder = self._complete(name, option="promote")
        with self._changing() as before:
            newest = self._newest(before)
            if newest is not None and newest.run_id == folder.run_id:
                raise ConfigError(f"promote {name}: run {folder.run_id} is the newest promotion of {self.party.party} already")
            promotion = before.with_run(folder.run_id) or self._made(folder)
            if not was_decided(folder):  # a counted decision said so
                enter_choice(self.contract, self.party, folder, what=f"promotion of run {folder.run_id}")
            is_candidate = before.candidate is not None and before.candidate.run_id == promotion.run_id
            self._write(
                _Promotions(
                    promoted=[promotion, *_without(promotion, before.promoted)],
                    candidate=None if is_candidate else before.candidate,
                    withdrawn=_without(promotion, before.withdrawn),
                )
            )
        return promotion

    def name_candidate(self, name: str) -> Promotion:
        """Name a complete run as the candidate, which serving scores as well as the run in use.

        Raises ConfigError if it is the newest promotion or not complete, or nothing is promoted.
        """
        folder = self._complete(name, option="shadow")
        with self._changing() as before:
            newest = self._newest(before)
            if newest is None:  # then the latest complete run is in use, which may be this one
                raise ConfigError(f"shadow {name}: {self.party.party} has promoted no run; promote the one in use first")
            if newest.run_id == folder.run_id:
                raise ConfigError(f"shadow {name}: run {folder.run_id} is the newest promotion; name a run that is not in use")
            promotion = before.with_run(folder.run_id) or self._made(folder)
            withdrawn = _without(promotion, before.withdrawing(before.candidate))
            enter_choice(self.contract, self.party, folder, what=f"shadow of run {folder.run_id}")
            self._write(msgspec.structs.replace(before, candidate=promotion, withdrawn=withdrawn))
        return promotion

    def drop_candidate(self) -> Promotion | None:
        """Remove the candidate, and return it."""
        with self._changing() as before:
            self._enter_end(before.candidate, "shadow, ended,")
            self._write(msgspec.structs.replace(before, candidate=None, withdrawn=before.withdrawing(before.candidate)))
        return before.candidate

    def _newest(self, promotions: _Promotions) -> Promotion | None:
        return next(filter(self._is_ours, promotions.promoted), None)

    def _complete(self, name: str, *, option: str) -> RunFolder:
        folder = named_run(self.contract, self.party, name, option=option)
        require_complete(folder, self.contract)
        folder.check(trained=True)
        for damage in folder.damage():
            raise damage
        return folder

    def roll_back(self) -> tuple[Promotion, Promotion | None]:
        """Remove the newest promotion. Return it and the one before it. Raises ConfigError if there is none."""
        with self._changing() as before:
            own_promotions = [each for each in before.promoted if self._is_ours(each)]
            if not own_promotions:
                raise ConfigError(f"rollback: {self.party.party} has promoted no run of contract {self.contract.name}")
            remaining = [each for each in before.promoted if each is not own_promotions[0]]
            self._enter_end(own_promotions[0], "rollback")
            self._write(msgspec.structs.replace(before, promoted=remaining, withdrawn=before.withdrawing(own_promotions[0])))
        return own_promotions[0], own_promotions[1] if len(own_promotions) > 1 else None

    def _enter_end(self, promotion: Promotion | None, what: str) -> None:
        """Record in the ledger that this use of a run has ended, whether its folder is still there or not."""
        if promotion is None:
            return
        folder = None
        with suppress(ConfigError, StorageError):
            folder = named_run(self.contract, self.party, promotion.run_id, option=what)
        enter_choice(self.contract, self.party, folder, what=f"{what} of run {promotion.run_id}")

    def intact(self) -> list[Promotion]:
        """List the promotions whose halves are unchanged. Raises ConfigError if the newest one's has changed.

        An older one whose half is missing or changed is left out: it cannot be used.
        """
        promotions = []
        for place, each in enumerate(self.promoted()[:MOST_PROMOTED]):
            if self._is_intact(each):
                promotions.append(each)
            elif place == 0:
                raise ConfigError(
                    f"the promoted run {each.run_id} of {self.party.party} is gone, or another than was promoted; put its folder "
                    "back, or roll back with `tallystick runs ... rollback` on all sides"
                )
        return promotions

    def enter_named(self, folder: RunFolder, *, option: str) -> None:
        """Record a label party's choice of a run by an option. Its newest promotion was recorded when it was promoted."""
        promoted = self.promoted()
        if not promoted or promoted[0].run_id != folder.run_id:
            enter_choice(self.contract, self.party, folder, what=f"{option} {folder.run_id}")

    def require_usable(self) -> None:
        """Raise ConfigError if this side has promoted a run that holds no trained model, which can happen without gradients.

        Check all promotions and not only the newest: the others may choose any of them, and must not see which one fails.
        """
        candidate = self.candidate_half()
        for half in (*self.halves(), *([candidate] if candidate is not None else [])):
            try:
                require_trained(named_run(self.contract, self.party, half.run_id), self.contract)
            except ConfigError as error:
                raise ConfigError(
                    f"promoted run {half.run_id}: {error}; or take its promotion back with `tallystick runs ... rollback`"
                ) from None

    def _is_intact(self, promotion: Promotion) -> bool:
        try:
            folder = named_run(self.contract, self.party, promotion.run_id, option="promoted run")
            return folder.complete(self.contract) and self._commitment(folder, promotion.key) == promotion.commitment
        except (ConfigError, StorageError):
            return False

    def _commitment(self, folder: RunFolder, key: str) -> str:
        at_home = not self.contract.sends_gradients and self.contract.role_of(self.party.party) == "label"
        return commitment_of(folder, bytes.fromhex(key), at_home=at_home)

    def _made(self, folder: RunFolder) -> Promotion:
        key = secrets.token_bytes(32).hex()
        return Promotion(
            run_id=folder.run_id,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            key=key,
            contract=folder.origin.contract,
            commitment=self._commitment(folder, key),
        )

    def agree(self, run_id: str, version: str, peer: str) -> None:
        """Save the version of a run that all have promoted or named. Raises PeerError if it differs from the saved version."""
        with self._changing() as before:
            promotion = before.with_run(run_id)
            if promotion is None or promotion.version == version:
                return
            if promotion.version:
                raise PeerError(
                    peer,
                    f"run {run_id} is not the version that was agreed: a party's half of it has changed; promote another run "
                    "on all sides, or roll back",
                )

            def told(each: Promotion) -> Promotion:
                return msgspec.structs.replace(each, version=version) if each.run_id == run_id else each

            candidate = told(before.candidate) if before.candidate is not None else None
            promoted = [told(each) for each in before.promoted]
            self._write(msgspec.structs.replace(before, promoted=promoted, candidate=candidate))

    @contextmanager
    def _changing(self) -> Iterator[_Promotions]:
        """Yield the promotions, locked against other processes of this machine."""
        make_folders(self.path.parent, mode=0o700)
        with locked(self.path.parent):
            yield self._all()

    def _write(self, promotions: _Promotions) -> None:
        write_bytes(self.path, msgspec.json.encode(promotions), private=True)


def _half(promotion: Promotion) -> PromotedHalf:
    return PromotedHalf(run_id=promotion.run_id, contract=promotion.contract, commitment=promotion.commitment)


def _without(promotion: Promotion, others: Sequence[Promotion]) -> list[Promotion]:
    return [each for each in others if each.run_id != promotion.run_id]


def commitment_of(folder: RunFolder, key: bytes, *, at_home: bool = False) -> str:
    """Return a commitment to this party's half of a run: hiding by its key, binding by the hash.

    With ``at_home`` leave out what depends on labels: nobody may learn anything about it, not even that it changed.
    """
    digest = hashlib.blake2b(key=key, digest_size=32, person=b"tally version")
    for part in (folder.run_id.encode(), folder.origin.contract.encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    for path in (folder.encoder,) if at_home else (folder.model, folder.encoder, folder.label_coder):
        content = read_own(path, origin=folder.origin) if path.exists() else b""
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def listed(contract: Contract, party: PartyFile) -> list[dict[str, object]]:
    """List this party's runs of a contract, newest first: their time, metric, start and promotion."""
    versions = Versions(contract=contract, party=party)
    promoted = {each.run_id: place for place, each in enumerate(versions.promoted())}
    agreed = {each.run_id: bool(each.version) for each in versions.promoted()}
    candidate = versions.candidate()
    rows: list[dict[str, object]] = []
    for folder in RunFolder.all(party.runs, contract, party.party, unusable=False, key=party.run_key):
        try:
            run_id, point = folder.run_id, StartingPoint.of(folder)
        except StorageError as error:
            rows.append({"run_id": "", "folder": str(folder.path), "state": f"damaged: {error}"})
            continue
        # when the run began, and the contract's promotion metric, if this party has it
        metric = contract.promotion.metric_of(contract.target.type)
        figures: dict[str, object] = {"began": None, "metric": metric, "value": None}
        with suppress(OSError, StorageError):
            result = read_result(folder.read_json(folder.result))
            shared = result.sections.shared
            metrics = result.joint or (shared.metrics if shared is not None else {})
            figures |= {"began": result.started, "value": metrics[metric]["value"] if metric in metrics else None}
        rows.append(
            {
                "run_id": run_id,
                "folder": str(folder.path),
                "state": "trained" if folder.trained else "embeddings arrived" if folder.complete(contract) else "unfinished",
                **figures,
                "started_from": point.run_id if point is not None else None,
                "promoted": run_id in promoted,
                "newest": promoted.get(run_id) == 0,
                "agreed": agreed.get(run_id, False),
                "candidate": candidate is not None and candidate.run_id == run_id,
            }
        )
    return rows
