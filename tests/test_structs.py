"""Several threads may decode a type for the first time at once. A separate process, because msgspec alone crashes in most."""

import subprocess
import sys

TRY = """
import sys, threading
import msgspec
from tallystick.msgspec_threads import prepared

sys.setswitchinterval(1e-7)
for number in range(1500):
    fields = {f"field_{place}": "list[int]" for place in range(6)}
    Inner = type(msgspec.Struct)(f"Inner{number}", (msgspec.Struct,), {"__annotations__": fields, "__module__": __name__})
    annotations = {"__annotations__": {"name": "str", "inner": "Inner", "more": "list[str]"}, "__module__": __name__}
    Outer = type(msgspec.Struct)(f"Outer{number}", (msgspec.Struct,), annotations)
    sent = Outer("x", Inner(*[[1]] * 6), ["y"])
    payload, start, decoded = msgspec.msgpack.encode(sent), threading.Barrier(4), []

    def decode():
        start.wait()
        decoded.append(msgspec.msgpack.decode(payload, type=prepared(Outer)))

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decoded == [sent] * 4
print("survived")
"""


def test_threads_that_decode_a_type_for_the_first_time_at_once():
    ran = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "survived\n"
