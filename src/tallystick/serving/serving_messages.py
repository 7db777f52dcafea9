"""Exchange versions between two serving sides over the session. Schema and sizes are checked before anything else."""

from typing import Annotated

import msgspec

from tallystick.job.handshake import Digest, PromotedHalf, RunId
from tallystick.job.versions import MOST_PROMOTED
from tallystick.network.messages import Message
from tallystick.serving.loaded_runs import MOST_LOADED


class WantedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run, and the hash of all parties' halves of it. The hash is None if nobody has promoted a run."""

    run_id: RunId
    version: Digest | None = None


class VersionsWanted(Message, frozen=True):
    """Label party to feature party: the runs that it wants loaded, the run in use first. Others may be dropped."""

    runs: Annotated[tuple[WantedRun, ...], msgspec.Meta(min_length=1, max_length=MOST_LOADED)]


class VersionsHeld(Message, frozen=True):
    """Feature party to label party: its promotions, its candidate, and which wanted runs it has loaded, or cannot load."""

    promoted: Annotated[tuple[PromotedHalf, ...], msgspec.Meta(max_length=MOST_PROMOTED)]
    candidate: PromotedHalf | None
    loaded: Annotated[tuple[RunId, ...], msgspec.Meta(max_length=MOST_LOADED)]
    failed: Annotated[tuple[RunId, ...], msgspec.Meta(max_length=MOST_LOADED)]
