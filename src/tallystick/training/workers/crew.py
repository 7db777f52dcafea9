"""The further processes of a training, wherever they are: what the party's own process asks of them."""

from typing import Protocol


class Crew(Protocol):
    """The further workers, all of which do as they are told, each with its own rows."""

    @property
    def adding(self) -> int:
        """Count the first workers that make the gradients of embedding tables and update them: those that share this memory."""
        ...

    def tell(self, what: str, number: int, rows: int) -> None:
        """Let all begin with a batch's forward or backward pass, with adding up, or with the update; ``number`` names the batch.

        Raises WorkerLost where one is gone.
        """
        ...

    def hear(self) -> None:
        """Wait until all have done it, and what they made is in this process's memory; raises WorkerLost where one is gone."""
        ...

    def end(self) -> None:
        """End them."""
        ...

    def largest(self) -> str:
        """Say the largest number that each has sent in this training, where it is on a machine that may be another's."""
        ...
