"""A Ray cluster of two machines, both of which are this one."""

from contextlib import contextmanager

import pytest


@contextmanager
def two_machines():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1, resources={"second": 1})
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()
