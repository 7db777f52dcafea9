"""Where a party's independent work runs: the party file's ``compute``."""

from typing import Annotated, Literal

from pydantic import Field

from tallystick.compute.local import LocalEngine
from tallystick.compute.task import Engine
from tallystick.reading import Model


class ComputeConfig(Model):
    """What runs the independent tasks of this party, such as the trials of `tallystick audit CONTRACT`."""

    engine: Literal["local"] = Field(default="local", description="local: worker processes of this machine")
    workers: Annotated[int, Field(strict=True, ge=1, le=4096)] = Field(
        description="tasks at a time; how many processes train for a party is another number, training_workers"
    )
    threads: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(
        default=1, description="threads of each task; the last bits of a figure follow them, and no engine changes these"
    )

    def made(self) -> Engine:
        """The engine."""
        return LocalEngine(workers=self.workers, threads=self.threads)
