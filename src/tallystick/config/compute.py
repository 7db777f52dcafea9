"""Choose where a party's independent work runs: the party file's ``compute``."""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from tallystick.compute.local import LocalEngine
from tallystick.compute.ray_cluster import RayEngine
from tallystick.compute.task import Engine
from tallystick.reading import Positive, Text, Variant, usual

_ENGINE = "local: worker processes of this machine; ray: a Ray cluster of this party's own"


def _cluster(text: str) -> str:
    if not re.fullmatch(r"auto|(ray://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):\d{1,5}", text):
        raise ValueError("must be auto, host:port or ray://host:port")
    return text


class ComputeKeys(Variant):
    """Keys of every engine for this party's independent tasks, such as trials of `tallystick audit CONTRACT`."""

    workers: Annotated[int, Field(strict=True, ge=1, le=4096)] = Field(
        description="tasks at a time; how many processes train for a party is another number, training_workers"
    )
    threads: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(
        default=1, description="threads of each task; the last bits of a figure follow them, and not the engine"
    )

    def made(self) -> Engine:
        """Build the engine."""
        cluster = self.cluster(workers=self.workers, threads=self.threads)
        return cluster or LocalEngine(workers=self.workers, threads=self.threads)

    def cluster(self, *, workers: int, threads: int) -> RayEngine | None:  # noqa: ARG002
        """Build the Ray cluster for this many workers and threads. Return None if no cluster is named."""
        return None


class LocalCompute(ComputeKeys):
    """Worker processes of this machine."""

    engine: Literal["local"] = Field(default="local", description=_ENGINE)


class RayCompute(ComputeKeys):
    """A Ray cluster of this party's own, also for training workers."""

    engine: Literal["ray"] = Field(description=_ENGINE)
    address: Annotated[str, AfterValidator(_cluster)] | None = Field(
        default=None,
        description="of the Ray cluster: auto for the one that this machine belongs to; host:port of its head, from a machine "
        "that belongs to it; ray://host:port of its head, from one that does not; null is auto",
    )
    resources: dict[Text, Positive] = Field(
        default_factory=dict, description="Ray's resources that each task needs in addition to CPUs, by name"
    )

    def cluster(self, *, workers: int, threads: int) -> RayEngine | None:
        """Build the Ray cluster for this many workers and threads."""
        return RayEngine(address=self.address or "auto", workers=workers, threads=threads, resources=dict(self.resources))


ComputeConfig: TypeAlias = Annotated[LocalCompute | RayCompute, Field(discriminator="engine"), usual("engine", "local")]
