"""Hold a side's rows at the positions of an alignment, as they were when serving began, and stand-ins for those that it lacks."""

import hashlib
from collections.abc import Sequence

from tallystick.alignment.outcome import Alignment
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.datasets import dataset_of
from tallystick.dataset.own_rows import OwnRows
from tallystick.privacy.randomness import SEED_BITS
from tallystick.serving.side import ServingSide
from tallystick.tables.encoder import Encoder


def aligned_rows(side: ServingSide, alignment: Alignment, encoder: Encoder | None) -> Dataset:
    """Encode the aligned rows by a run's encoder.

    Stand-ins follow from the side's secret and the alignment, so they are the same in all sessions. If they were drawn afresh,
    a peer could recognise them by the change.
    """
    own = OwnRows(party=side.party, is_label=side.is_label, frame=side.frame, keys=side.keys, alignment=alignment)
    # the seed of stand-ins; an intersection has none, because its rows have no universal ids
    uids = alignment.uids_N16.tobytes() if alignment.uids_N16 is not None else b""
    digest = hashlib.blake2b(uids, key=side.home.secret()[:64], digest_size=SEED_BITS // 8, person=b"serve stand-ins")
    seed = int.from_bytes(digest.digest(), "big")
    return dataset_of(side.contract.linkage).to_score(side.contract, own, encoder, secret_seed=lambda: seed)


def names_of(side: ServingSide, alignment: Alignment) -> Sequence[bytes]:
    """Return the names of positions, for both sides and for budgets: the key, or, on a union, the position itself.

    Universal ids would do for the batches. But a new alignment draws new ones, and a peer with a changed key gets one, so these
    names would restart the day's budgets. Own keys as names would show whose rows they are when a budget is used up.
    """
    if alignment.uids_N16 is None:
        return list(side.keys.ids_of(alignment.rows_N))
    return [b"%d" % position for position in range(len(alignment))]


def own_places(side: ServingSide, alignment: Alignment) -> dict[bytes, int]:
    """Return the positions by own key."""
    own_N = alignment.rows_N >= 0
    return dict(zip(side.keys.ids_of(alignment.rows_N[own_N]), own_N.nonzero()[0].tolist(), strict=True))
