"""Run the roles of a protocol, each in a thread of its own."""

from concurrent.futures import ThreadPoolExecutor

from tallystick.errors import TallystickError
from tallystick.network.channel import memory_channels


def in_threads(*roles):
    """Run the roles at once; gives what each returned, or the TallystickError it raised."""

    def outcome(role):
        try:
            return role()
        except TallystickError as error:
            return error

    with ThreadPoolExecutor(len(roles)) as pool:
        return list(pool.map(outcome, roles))


def error_of(role, cheat):
    """Run a role against a peer that does not follow the protocol; gives the role's error."""
    mine, theirs = memory_channels("role", "peer", timeout_s=5)
    return in_threads(lambda: role(mine), lambda: cheat(theirs))[0]
