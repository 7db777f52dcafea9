"""Run one party of SecretFlow's private set intersection, in a Python that has ``spu`` and not tallystick.

It reads its part of the job as JSON from standard input, and writes its figures as JSON to the file that the job names.
"""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Run this party's part."""
    import spu.psi as psi  # type: ignore[import-not-found]
    from spu.libspu import link  # type: ignore[import-not-found]

    job = json.load(sys.stdin)
    description = link.Desc()
    description.connect_retry_times, description.recv_timeout_ms = 100, 1_800_000
    for rank, port in enumerate(job["ports"]):
        description.add_party(str(rank), f"127.0.0.1:{port}")
    joined = link.create_brpc(description, job["rank"])
    config = psi.PsiExecuteConfig(
        protocol_conf=psi.PsiProtocolConfig(
            protocol=psi.parse_protocol(f"PROTOCOL_{job['protocol']}"),
            receiver_rank=0,
            broadcast_result=True,
            ecdh_params=psi.EcdhParams(curve=psi.parse_curve_type("CURVE_FOURQ")),
        ),
        input_params=psi.InputParams(path=job["table"], selected_keys=["id"], keys_unique=True),
        output_params=psi.OutputParams(path=job["written"]),
    )
    started, cpu_started = time.perf_counter(), time.process_time()
    report = psi.psi_execute(config, joined)
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    figures = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        # Not ru_maxrss, which starts with the memory of the process that started this one.
        "peak_mib": next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024,
        "common": report.intersection_count,
    }
    Path(job["figures"]).write_text(json.dumps(figures), encoding="utf-8")
    joined.stop_link()


if __name__ == "__main__":
    main()
