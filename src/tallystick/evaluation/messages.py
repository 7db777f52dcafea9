"""Control messages of an evaluation; the cut embeddings are in tallystick.cut."""

from tallystick.network.messages import Message


class Finished(Message, frozen=True):
    """Label party to feature parties: the run is over and its report written; and the AUC, if one was released privately.

    An ``epsilon`` without an ``auc`` was spent for nothing: the noise left none, and ``reveals`` says why.
    """

    rows: int
    auc: float | None = None
    low: float | None = None
    high: float | None = None
    epsilon: float | None = None
    mechanism: str = ""
    protects: str = ""
    reveals: str = ""
