"""Support several rows of the label party for one id: after the distinct ids are aligned, positions become rows.

Shapes: U ids of a table, R rows of it, K common ids, N positions.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tallystick.alignment.exchange import receive_list, send_list
from tallystick.alignment.outcome import Alignment, Rows
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel

COUNTS = "rows of each common id"
ROWS_OF_AN_ID, USUAL_ROWS = 100, 1_000_000
"""If the contract sets no limit: rows that the label party may have per id of a feature party, and rows it may have anyway."""


def repeat_label_party(alignment: Alignment, id_R: Rows, channels: Sequence[Channel], *, rng: SecureRandom) -> Alignment:
    """Give every own row its own position, with the rows of an id together in a secret order, and send each id's number of rows.

    A feature party sees what crosses for each position. A table's order often follows a time or the label. Then a row's position
    among others of its id would reveal something that no defence of labels hides.

    Threat model and guarantee: for common ids, those of the alignment. The number of rows of each common id is disclosed to every
    feature party, without protection. Nothing is sent about ids that are not common.

    Args:
        alignment: alignment of the distinct ids; its ``rows_N`` are ids.
        id_R: the id of each own row.
        channels: channels to the feature parties.
        rng: draws the order.
    """
    ids_K = alignment.rows_N
    count_U = np.bincount(id_R, minlength=int(ids_K.max(initial=-1)) + 1)
    first_U = np.cumsum(count_U) - count_U
    count_K = count_U[ids_K]
    for channel in channels:
        send_list(channel, COUNTS, count_K)
    within_N = np.arange(count_K.sum()) - np.repeat(np.cumsum(count_K) - count_K, count_K)
    order_R = rng.permutation(len(id_R))
    by_id_R = order_R[np.argsort(id_R[order_R], kind="stable")]
    rows_N = by_id_R[np.repeat(first_U[ids_K], count_K) + within_N]
    return replace(alignment, rows_N=rows_N)


def repeat_feature_party(alignment: Alignment, channel: Channel, *, max_rows: int) -> Alignment:
    """Repeat the own row of each common id, once for each row that the label party has for it.

    Threat model and guarantee as for repeat_label_party: this side learns these numbers. Raises ProtocolError, before memory is
    allocated, for a number below 1 and for more than ``max_rows`` in total.
    """
    count_K = receive_list(channel, COUNTS, len(alignment), dtype=np.int64)
    least, rows = int(count_K.min(initial=1)), float(count_K.sum(dtype=np.float64))  # int64 could overflow
    if least < 1:
        raise ProtocolError(channel.peer, f"{channel.peer} has {least} rows for a common id; expected 1 or more")
    if rows > max_rows:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} has {rows:.0f} rows for the {len(alignment)} common ids, over {max_rows}; if it may bring so many, "
            "agree on it: set alignment.max_rows in the contract, on every side alike (null accepts "
            f"{ROWS_OF_AN_ID} for each of a feature party's ids, and at least {USUAL_ROWS:,})",
        )
    rows_N = np.repeat(alignment.rows_N, count_K)
    return replace(alignment, rows_N=rows_N, learnt=[*alignment.learnt, counts_learnt(channel.peer, len(rows_N), len(alignment))])


def counts_learnt(label_party: str, rows: int, ids: int) -> str:
    """Say what a feature party learnt from the numbers of rows."""
    return f"how many rows {label_party} has for each of the {ids} common ids: {rows} in all"
