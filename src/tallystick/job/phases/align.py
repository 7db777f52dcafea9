"""Align as a phase of a job: this party's role, the limits, and warnings about a poor match."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tallystick.alignment.exchange import MAX_ROWS, usual_max_rows
from tallystick.alignment.key_noise import key_event, noisy_keys
from tallystick.alignment.linkages import AlignmentInput, HelperInput
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psu_helper import HelperOutcome
from tallystick.alignment.randomness import SecureRandom, random_of
from tallystick.alignment.repeats import ROWS_OF_AN_ID, USUAL_ROWS, repeat_feature_party, repeat_label_party
from tallystick.config.alignment import MAX_IDS
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import DataError, IdError
from tallystick.job.job import Job
from tallystick.network.channel import Channel
from tallystick.run_folder.embedding_charge import count_anew
from tallystick.run_folder.folder import KEY_SPELLING, REPEATS, Draw, RunFolder, fresh_secret
from tallystick.run_folder.kept_buckets import KeptBuckets
from tallystick.run_folder.ledger import KEYS, charged, data_set
from tallystick.run_folder.noise_secret import noise_secret
from tallystick.tables.key_spelling import spelling_hints, spelling_of
from tallystick.tables.keys import Keys, fingerprint

LOW_MATCH = 0.5


def align_or_keep(job: Job, keys: Keys, *, anew: bool, run_id: str) -> Alignment:
    """Align, or load the alignment of a resumed run. Then say what was learnt."""
    watcher = job.logbook.watcher
    saved = job.folder.load_alignment()
    if not anew and saved is not None:
        watcher.say(f"keeping the alignment of the interrupted run: {len(saved[1])} rows")
        return saved[1]
    job.folder.forget_training()
    count_anew(job.folder)
    keys = with_noise(job.contract, job.party, job.folder, keys, what=f"linking of {job.contract.name}, run {run_id}")
    spelling = None
    if not job.contract.linkage.similar:  # now, because later the alignment fills the memory
        spelling = spelling_of(job.frame, columns=job.party.keys, alignment=job.contract.alignment)
    try:
        alignment = align_keys(
            job.contract,
            job.name,
            keys,
            job.channels,
            local=LocalOptions(
                threads=job.party.threads,
                progress=watcher.progress,
                stored=partial(KeptBuckets, job.folder, say=watcher.say),
                say=watcher.say,
            ),
            draw=job.folder.draw,
        )
    except IdError:  # no id is common
        watcher.say(f"warning: {_spelt_differently(job)}")
        raise
    if match_rate(job.contract, job.name, alignment) < job.contract.alignment.min_match_rate:
        match_notes(job, alignment)  # shown on this side alone: the error that follows is the same on all sides
    require_match_rate(job.contract, job.name, alignment)
    job.folder.save_alignment(alignment, run_id=run_id, table=fingerprint(keys))
    if spelling is not None:
        job.folder.note(KEY_SPELLING, spelling, private=True)
    for sentence in alignment.learnt:
        watcher.say(f"learnt: {sentence}")
    return alignment


def with_noise(contract: Contract, party: PartyFile, folder: RunFolder, keys: Keys, *, what: str) -> Keys:
    """Add the contract's noise to keys, and charge this party's ledger before drawing it. A key has the same noise in every
    run.
    """
    terms = contract.alignment.similarity
    event = key_event(terms) if terms is not None else None
    if terms is None or event is None or keys.similar is None:
        return keys
    of = keys.similar.noise_name(contract.hash)
    numbers_RD = folder.load_noisy_keys(of=of)
    if numbers_RD is None:
        secret = noise_secret(party)  # is known before anything that depends on it is charged
        with charged(party, folder, KEYS) as ledger:
            ledger.spend(data_set(party, KEYS), event, what=f"{what}: noise on keys")
        numbers_RD = noisy_keys(keys.similar, terms, secret=secret).numbers_RD
        folder.save_noisy_keys(numbers_RD, of=of)
    return replace(keys, similar=keys.similar.with_numbers(numbers_RD))


def kept_alignment(job: Job) -> Alignment:
    """Load the alignment of an earlier command on the same run. Raises DataError if there is none."""
    saved = job.folder.load_alignment()
    if saved is None:
        raise DataError(f"{job.folder.path} holds no alignment; run `tallystick align` on both sides first")
    return saved[1]


def linked_job(job: Job, alignment: Alignment) -> Job:
    """Return the job with the contract by which its rows are trained.

    If every id of the label party is common, a dispensable method for unaligned rows becomes ``none``. All parties know that
    from the alignment, so they also agree on what unaligned rows would rule out: folds, a refit, screening of columns.
    """
    return replace(job, contract=linked_contract(job.contract, job.name, alignment))


def linked_contract(contract: Contract, party: str, alignment: Alignment) -> Contract:
    """Return the contract by which the rows of an alignment are trained, as ``linked_job`` says."""
    if not contract.unaligned.facts.dispensable or match_rate(contract, party, alignment) < 1:
        return contract
    return contract.without_unaligned()


def align_keys(
    contract: Contract,
    party: str,
    keys: Keys,
    channels: Mapping[str, Channel],
    *,
    local: LocalOptions,
    expected: int = 0,
    kept_alignment: Alignment | None = None,
    draw: Draw = fresh_secret,
) -> Alignment:
    """Align this party's rows with the others' by the contract's method.

    Args:
        contract: the contract.
        party: this party's name.
        keys: its keys.
        channels: to all other parties.
        local: threads, progress, and the folder for finished buckets.
        expected: how many ids a peer may bring in any case.
        kept_alignment: the alignment of the training, when new rows are aligned.
        draw: returns the secret that decides the order of an id's rows.
    """
    linkage, is_label = contract.linkage, contract.role_of(party) == "label"
    inputs = AlignmentInput(
        ids=keys.ids,
        name=party,
        by_key=keys.by_key,
        similar=keys.similar,
        terms=contract.alignment.similarity,
        scales={
            name: c.scale
            for name, c in (kept_alignment.candidates if kept_alignment is not None else {}).items()
            if c.scale is not None
        },
        peers=[channels[name] for name in (contract.feature_parties if is_label else (contract.label_party,))],
        helper=channels[contract.helper] if contract.helper is not None else None,
        several=len(contract.feature_parties) > 1,
        rng=SecureRandom(),
        protocol=contract.alignment.protocol,
        dummies=contract.union.label_dummies if is_label else contract.union.feature_dummies,
        max_rows=max_rows(contract, len(keys.ids), expected=expected),
        local=local,
    )
    alignment = (linkage.label_party if is_label else linkage.feature_party)(inputs)
    if contract.alignment.duplicates != "all":
        return alignment
    if is_label:
        return repeat_label_party(alignment, keys.id_R, inputs.peers, rng=random_of(draw(REPEATS)))
    return repeat_feature_party(alignment, inputs.peers[0], max_rows=max_positions(contract, len(keys.ids)))


def help_align(contract: Contract, channels: Mapping[str, Channel]) -> HelperOutcome:
    """Play the helper, who sees keyed hashes or encoded keys, and sends the parties their positions or links."""
    helper = contract.linkage.helper_party
    assert helper is not None, "the contract has a helper"
    return helper(
        HelperInput(
            label=channels[contract.label_party],
            features=[channels[name] for name in contract.feature_parties],
            terms=contract.alignment.similarity,
            rng=SecureRandom(),
            max_rows=contract.alignment.max_rows or MAX_ROWS,
        )
    )


def match_notes(job: Job, alignment: Alignment) -> list[str]:
    """Warn if an alignment found few common ids, and say what may have kept others apart."""
    if (low := low_match(alignment)) is None:
        return []
    if job.contract.linkage.similar:
        return [f"{low}: rows with a link at all"]
    note = f"{low}; if more should be common, {_spelt_differently(job)}"
    job.logbook.watcher.say(f"warning: {note}")
    return [note]


def _spelt_differently(job: Job) -> str:
    """Say what may keep this side's keys from matching. Only this side sees it."""
    hints = spelling_hints(job.frame, columns=job.party.keys, alignment=job.contract.alignment)
    return f"the sides may spell keys in different ways: {'; '.join(hints)}"


def max_rows(contract: Contract, own: int, *, expected: int = 0) -> int:
    """Return the most ids that a party with ``own`` ids may bring or accept."""
    if contract.alignment.max_rows is not None:
        return contract.alignment.max_rows
    return min(max(usual_max_rows(own), expected), MAX_IDS)


def max_positions(contract: Contract, own: int) -> int:
    """Return the most rows of the label party that a feature party with ``own`` ids accepts for these ids."""
    if contract.alignment.max_rows is not None:
        return contract.alignment.max_rows
    return min(max(ROWS_OF_AN_ID * own, USUAL_ROWS), MAX_IDS)


def require_match_rate(contract: Contract, party: str, alignment: Alignment) -> None:
    """End the run on every side if fewer of the label party's ids matched than the contract asks for.

    All parties know the two counts from the alignment, so this discloses nothing further. Raises DataError.
    """
    least = contract.alignment.min_match_rate
    both, rate = alignment.sizes["intersection"], match_rate(contract, party, alignment)
    if rate < least:
        raise DataError(
            f"alignment.min_match_rate = {least:g}: only {both} of the {_label_ids(contract, party, alignment)} ids of "
            f"{contract.label_party} ({rate:.1%}) are common; agree on other alignment.keys.normalise, or on a smaller rate"
        )


def match_rate(contract: Contract, party: str, alignment: Alignment) -> float:
    """Return the share of the label party's ids that all parties have. In a union it is the share of announced ids, dummies
    included.
    """
    return alignment.sizes["intersection"] / _label_ids(contract, party, alignment)


def low_match(alignment: Alignment) -> str | None:
    """Return a sentence if fewer than half of the ids of the smallest side are common, or None."""
    sizes = {name: size for name, size in alignment.sizes.items() if not name.startswith("intersection") and name != "union"}
    both, fewest = alignment.sizes["intersection"], min(sizes.values())
    if both >= LOW_MATCH * fewest:
        return None
    return f"only {both} ids are common, {both / fewest:.1%} of the {fewest} of the side that has the fewest"


def _label_ids(contract: Contract, party: str, alignment: Alignment) -> int:
    return alignment.sizes["own" if party == contract.label_party else contract.label_party]
