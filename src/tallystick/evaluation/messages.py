"""Control messages of an evaluation; the cut embeddings are in tallystick.cut."""

from tallystick.network.messages import Message


class Finished(Message, frozen=True):
    """Label party to feature parties: the run is over and its report written."""

    rows: int
