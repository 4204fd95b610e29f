"""A cluster's trace on the real core: how it is read, the protocol, and that our choice beats the first that fits."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostler.core.fleet import Fleet, Job, Worker
from ostler.core.holding import Grant
from ostler.core.index import bits
from ostler.core.placing import place
from ostler.core.placing.score import Score
from ostler.core.room import pick_devices
from ostler.domain.errors import BadInput
from ostler.sim import openb

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
SIZES = [((1, 1000), 30), ((1, 460), 18), ((1, 550), 12), ((1, 320), 10), ((1, 270), 8), ((2, 1000), 6), ((8, 1000), 9)]


Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        path = tmp_path / "list.csv"
        path.write_text(text)
        return path

    return write


def family(seed: int, written: Written, machines: int = 48) -> tuple[list[openb.Node], list[openb.Pod]]:
    """Machines and pods like the public ones, fewer of them."""
    chance = random.Random(seed)
    kinds = [("P100", 2, 32_000), ("T4", 2, 96_000), ("V100", 8, 64_000), ("G2", 8, 96_000), ("A10", 1, 64_000)]
    nodes = [
        openb.Node(f"n{number:03d}", cores, 400_000, gpus, model)
        for number, (model, gpus, cores) in enumerate(chance.choice(kinds) for _ in range(machines))
    ]
    rows = ""
    for number in range(400):
        [(gpus, part)] = chance.choices([size for size, _ in SIZES], [weight for _, weight in SIZES])
        cores = gpus * chance.choice((2000, 4000, 6000, 12_000))
        picky = chance.choice(("V100", "G2|V100", "T4|P100")) if gpus <= 2 and chance.random() < 0.1 else ""
        if chance.random() < 0.15:
            gpus, part, cores, picky = 0, 0, chance.choice((4000, 16_000, 32_000)), ""
        rows += f"p{number:03d},{cores},{8192 * max(1, gpus)},{gpus},{part},{picky}\n"
    return nodes, openb.read_pods(written(PODS + rows))


def first_fit(fleet: Fleet, job: Job, among: int) -> tuple[Worker, Grant, Score]:
    worker = fleet.workers[min(fleet.index.worker_at(number) for number in bits(among))]
    grant = pick_devices(job.shape.request, worker.room)
    assert grant is not None
    return worker, grant, Score({})


def test_more_is_allocated_than_by_the_first_machine_that_fits(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [family(seed, written) for seed in range(4)]
    ours = [openb.run(nodes, pods, seed) for seed, (nodes, pods) in enumerate(clusters)]
    monkeypatch.setattr(place, "choose", first_fit)
    theirs = [openb.run(nodes, pods, seed) for seed, (nodes, pods) in enumerate(clusters)]
    assert [one.pods for one in ours] == [one.pods for one in theirs]
    assert sum(one.alloc_at_100 for one in ours) > sum(one.alloc_at_100 for one in theirs) + 3
    assert sum(one.alloc_at_130 for one in ours) > sum(one.alloc_at_130 for one in theirs) + 3


def test_the_same_seed_gives_the_same_and_another_seed_another_outcome(written: Written) -> None:
    nodes, pods = family(1, written, machines=12)
    outcomes = [openb.run(nodes, pods, seed) for seed in (1, 1, 2)]
    same = [(one.alloc_at_100, one.alloc_at_130, one.failed, one.pods) for one in outcomes]
    assert same[0] == same[1] != same[2]


def test_pods_arrive_shuffled_and_again_until_enough_has_been_asked_for(written: Written) -> None:
    pods = openb.read_pods(written(PODS + "".join(f"p{number},1,1,1,1000,\n" for number in range(5))))
    order = openb.arrivals(pods, 10, 42)
    assert sorted(pod.name for pod in order[:5]) == [f"p{number}" for number in range(5)]
    assert len(order) == 13 and order != openb.arrivals(pods, 10, 43)
    assert order == openb.arrivals(pods[::-1], 10, 42)


def test_what_is_not_placed_is_tried_once_and_takes_nothing(written: Written) -> None:
    nodes = openb.read_nodes(written(f"{NODES}n0,4000,9999,1,T4\n"))
    pods = openb.read_pods(written(f"{PODS}a,1000,1,1,600,\nb,1000,1,1,600,\n"))
    outcome = openb.run(nodes, pods, 1)
    assert (outcome.alloc_at_100, outcome.alloc_at_130, outcome.pods, outcome.failed) == (60.0, 60.0, 3, 2)


def test_cores_memory_shares_and_types_are_all_kept_to(written: Written) -> None:
    nodes = openb.read_nodes(written(f"{NODES}cpu,9000,9999,0,\nn0,4000,1000,2,T4\nn1,4000,1000,2,V100M16\n"))
    assert [node.name for node in nodes] == ["n0", "n1"]
    rows = [
        "4001,1,0,0,",
        "1,1001,0,0,",
        "1,1,1,1000,V100M32",
        "1,1,3,1000,",
        "1,1,1,700,v100m16|A10",
        "1,1,2,1000,V100M16",
    ]
    pods = openb.read_pods(written(PODS + "".join(f"x,{row}\n" for row in rows)))
    cluster = openb.Cluster(nodes)
    taken = [cluster.accept(cluster.submit(f"p{number}", pod.request)) for number, pod in enumerate(pods)]
    assert [[given.worker_id for given in one] for one in taken] == [[], [], [], [], ["n1"], []]


def test_lists_with_fewer_columns_another_order_and_blank_lines_are_read(written: Written) -> None:
    text = (
        "\ufeffgpu_milli,name,num_gpu,memory_mib,cpu_milli\n500,a,1,1024,2000\n\n1000.0,b,8,,0\n0,c,1,1,1\n,d,0,1,1\n"
    )
    found = openb.read_pods(written(text))
    assert [(pod.name, pod.gpu_milli) for pod in found] == [("a", 500), ("b", 8000), ("c", 1000), ("d", 0)]
    assert (found[0].request.gpu_milli, found[0].request.cores_milli, found[0].request.gpu_type) == (500, 2000, "")
    assert openb.read_nodes(written("gpu,sn,cpu_milli,memory_mib\n2,a,1,1\n"))[0].model == ""


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (openb.read_pods, "name,cpu_milli\n", "line 1: there is no column memory_mib, num_gpu, gpu_milli"),
        (openb.read_pods, f"{PODS}a,1,1,1,1000,\nb,many,1,1,1000,\n", "line 3: cpu_milli is 'many'"),
        (openb.read_pods, f"{PODS}a,1,1,2,500,\n", "line 2: gpu_milli 500 of 2 GPUs"),
        (openb.read_pods, f"{PODS}a,-1,1,1,1000,\n", "line 2: cpu_milli is '-1'"),
        (openb.read_pods, f"{PODS}a,1,1,0,0,\n", "no pod in it asks for a GPU"),
        (openb.read_nodes, f"{NODES}a,1,1,0,\n", "no machine in it has a GPU"),
        (openb.read_nodes, "", "line 1: there is no column sn"),
    ],
)
def test_a_mistake_in_a_list_is_named_by_its_line(read: Any, text: str, told: str, written: Written) -> None:
    with pytest.raises(BadInput) as caught:
        read(written(text))
    assert told in str(caught.value)
