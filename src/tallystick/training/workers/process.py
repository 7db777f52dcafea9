"""Run one of a party's additional training processes: it gets the plan, then a line for each batch to run forward or backward.

Its standard input and output are pipes to the party's own process, and the memory is an open file that it received. It ends when
its input does: with the party's own process, however that ends.
"""

import json
import mmap
import os
import signal
import sys

import torch

from tallystick.training.workers.plan import Layout, WorkerPlan
from tallystick.training.workers.shard import Shard


def main() -> None:
    """Work until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the party's own process answers the operator, and then ends this one
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # so that a library's output is not taken for an answer
    try:
        lines = iter(sys.stdin.buffer)
        if (first := next(lines, None)) is not None:
            task = json.loads(first)
            plan = WorkerPlan.from_json(task["plan"])
            torch.set_num_threads(plan.threads)
            module = plan.module().train()
            layout = Layout(plan, module)
            memory = memoryview(mmap.mmap(task["file"], layout.size))
            os.close(task["file"])
            shard = Shard(module, plan, layout.tensors(memory), worker=task["worker"], adding=plan.workers)
            does = {b"forward": shard.forward, b"backward": shard.backward, b"add": shard.add_up, b"update": shard.update}
            answers.write(b"\n")
            for line in lines:
                what, number, rows = line.split()
                does[what](int(number), int(rows))
                answers.write(b"\n")
    except BrokenPipeError:
        return
    except Exception as error:
        answers.write(json.dumps(f"{type(error).__name__}: {error}").encode() + b"\n")


if __name__ == "__main__":
    main()
