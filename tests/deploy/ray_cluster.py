"""A Ray cluster of three nodes, all on this machine, that is told on stdin what shall happen to it.

Prints its address when it is ready, and a line for each command that was done: "kill" kills the node that
came last as a power cut would, "add" adds one. It ends with its input.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

NODES = 3
# Small, and found dead after five seconds instead of fifteen.
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
HEALTH = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}


def main() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**NODE, "_system_config": HEALTH, "dashboard_agent_listen_port": 0},
    )
    nodes = [cluster.add_node(**NODE) for _ in range(NODES - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        else:
            nodes.append(cluster.add_node(**NODE))
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
