"""State what an attack needs of a view; the attack says it where it found nothing to measure."""

from typing import Protocol, runtime_checkable

from tallystick.attacks.view import View


@runtime_checkable
class Needs(Protocol):
    """An attack that needs more than rows of both kinds whose presence the attacker does not know."""

    def unmet(self, view: View) -> str:
        """Say what it needs that this view, of which it could measure nothing, did not give it."""
        ...


def other_epochs(view: View) -> str:
    """Say what attacks lack that compare a row's observations."""
    one = "only one epoch was recorded" if len(view.epochs) < 2 else "too few rows were recorded in more than one"
    return f"it compares epochs, and {one}"
