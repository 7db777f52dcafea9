"""Name the keys in which a peer's contract differs from one's own."""

import json
from collections.abc import Mapping
from typing import Any

MAX_DIFFERENCES = 50


def differences(own: str, peer_json: str) -> list[str]:
    """List the keys in which two canonical JSONs differ, with both values.

    ``peer_json`` comes from a peer: it may be anything, and is shortened and escaped before it is shown. A contract contains
    nothing private.
    """
    try:
        # Parse JSON of at most a contract's size. Raises ValueError, because the paths of many deep values add up
        value = json.loads(peer_json)
        waiting, items = [(value, 0)], 0
        while waiting:
            item, depth = waiting.pop()
            items += 1
            if items > 20_000 or depth > 16 or (isinstance(item, dict) and any(len(key) > 100 for key in item)):
                raise ValueError("a contract does not have this many values, or such keys")
            children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            waiting += [(child, depth + 1) for child in children]
        other = _flat(value)
    except (ValueError, RecursionError):
        return ["the peer's contract is not readable JSON; install the same tallystick on both sides"]
    own_values = _flat(json.loads(own))
    lines = [
        f"{json.dumps(key)[1:-1][:120]}: ours {_side(own_values, key)}, theirs {_side(other, key)}"
        for key in sorted(own_values.keys() | other.keys())
        if key not in own_values
        or key not in other
        or own_values[key] != other[key]
        or type(own_values[key]) is not type(other[key])
    ]
    if len(lines) > MAX_DIFFERENCES:
        lines[MAX_DIFFERENCES:] = [f"and {len(lines) - MAX_DIFFERENCES} more"]
    return lines


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        parts = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list) and value:
        parts = ((f"{path}.{index}", item) for index, item in enumerate(value))
    else:
        return {path: value}
    return {key: found for prefix, item in parts for key, found in _flat(item, prefix).items()}


def _side(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key])[:80] if key in values else "absent"
