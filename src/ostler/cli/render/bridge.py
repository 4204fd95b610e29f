"""What `ostler bridge … --check` found."""

from typing import Any

from rich.console import RenderableType

from ostler.cli.render.columns import Columns
from ostler.cli.render.parts import plain, quiet, state_text
from ostler.cli.render.words import part_of

Document = dict[str, Any]


def node_table(nodes: list[Document], *, in_line: bool) -> RenderableType:
    """One line for each node, which is a worker of the fleet when the bridge runs."""
    if not nodes:
        return quiet("no nodes")
    grid = Columns("node", "state", "cores", "memory", "gpus", "why not", cut={"node": 10, "why not": 20})
    for node in nodes:

        def offered(part: str, whole: str, node: Document = node) -> float:
            return 0 if node["closed"] else node[whole] if in_line else node[part]

        grid.add(
            plain(node["name"]),
            state_text("offline" if node["closed"] else "ready"),
            f"{offered('free_cores', 'cores')} of {node['cores']}",
            part_of(offered("free_mib", "memory_mib") / 1024, node["memory_mib"] / 1024),
            plain(f"{offered('free_gpus', 'gpus')} of {node['gpus']} {node['gpu_type']}" if node["gpus"] else "–"),
            plain(node["closed"]),
        )
    return grid
