"""Choose where a party's independent work runs: the party file's ``compute``."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tallystick.compute.local import LocalEngine
from tallystick.compute.ray_cluster import RayEngine
from tallystick.compute.task import Engine
from tallystick.reading import Model, Positive, Problems, Text


def _cluster(text: str) -> str:
    if not re.fullmatch(r"auto|(ray://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):\d{1,5}", text):
        raise ValueError("must be auto, host:port or ray://host:port")
    return text


class ComputeConfig(Model):
    """Engine of this party's independent tasks, such as trials of `tallystick audit CONTRACT`, and of training workers."""

    engine: Literal["local", "ray"] = Field(
        default="local", description="local: worker processes of this machine; ray: a Ray cluster of this party's own"
    )
    workers: Annotated[int, Field(strict=True, ge=1, le=4096)] = Field(
        description="tasks at a time; how many processes train for a party is another number, training_workers"
    )
    threads: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(
        default=1, description="threads of each task; the last bits of a figure follow them, and not the engine"
    )
    address: Annotated[str, AfterValidator(_cluster)] | None = Field(
        default=None,
        description="of the Ray cluster (ray only): auto for the one that this machine belongs to; host:port of its head, from a "
        "machine that belongs to it; ray://host:port of its head, from one that does not; null is auto",
    )
    resources: dict[Text, Positive] = Field(
        default_factory=dict, description="Ray's resources that each task needs beside its CPUs, by name (ray only)"
    )

    @model_validator(mode="after")
    def _ray_alone(self) -> "ComputeConfig":
        if self.engine != "ray":
            ray_keys = [name for name in ("address", "resources") if getattr(self, name)]
            Problems.raise_any([f"{name}: goes with engine: ray; leave it out" for name in ray_keys])
        return self

    def made(self) -> Engine:
        """Build the engine."""
        cluster = self.cluster(workers=self.workers, threads=self.threads)
        return cluster or LocalEngine(workers=self.workers, threads=self.threads)

    def cluster(self, *, workers: int, threads: int) -> RayEngine | None:
        """Build the Ray cluster for so many workers with so many threads; None if none is named."""
        if self.engine != "ray":
            return None
        return RayEngine(address=self.address or "auto", workers=workers, threads=threads, resources=dict(self.resources))
