"""What a node offers while others, too, have jobs there."""

from ostler.bridge.base import Ask, Node
from ostler.bridge.offering import OTHERS, Amounts, Offer, Terms, seen, steadied
from ostler.bridge.record import Record

NODE = Node(name="n", cores=16, free_cores=16, memory_mib=16_384, free_mib=16_384, gpus=4, free_gpus=4, gpu_type="a100")


def ours(cores: float = 1.0, mib: int = 0, devices: tuple[int, ...] = ()) -> Record:
    ask = Ask(node="n", cores=max(1, int(cores)), memory_mib=mib, gpus=len(devices))
    return Record(task_id="t", ask=ask, cores=cores, asked_mib=mib, devices=devices)


def less(cores: int = 0, mib: int = 0, gpus: int = 0) -> Node:
    """The node with so much taken, by anybody."""
    return Node(
        name="n",
        cores=16,
        free_cores=16 - cores,
        memory_mib=16_384,
        free_mib=16_384 - mib,
        gpus=4,
        free_gpus=4 - gpus,
        gpu_type="a100",
    )


def test_what_is_ours_is_in_the_offer_and_what_is_others_is_not() -> None:
    mine = [ours(2.0, 1024, (0,)), ours(1.0)]
    found = seen(less(cores=3 + 5, mib=1024 + 2048, gpus=1 + 2), mine, closed=False, in_line=False)
    assert found == Amounts(11.0, 10, 16_384 - 2048, 2)


def test_what_a_batch_system_rounds_up_is_not_promised_twice() -> None:
    """Half a core is a whole one there: of sixteen such tasks none is left over for a seventeenth."""
    halves = [ours(0.5) for _ in range(16)]
    found = seen(less(cores=16), halves, closed=False, in_line=False)
    assert (found.cores - sum(one.cores for one in halves), found.slots - len(halves)) == (0.0, 0)


def test_a_closed_node_offers_no_more_than_it_has_of_ours_no_slot_for_another_and_says_why() -> None:
    offer = Offer(Terms(vram_gb=80.0))
    closed = less(cores=1, gpus=1)
    closed.closed = "the node is drained in Slurm"
    mine = [ours(1.0, 0, (2,))]
    found, slots = offer.look(closed, mine, mine, "")
    assert (found.cpu_count, found.memory_gb, slots) == (1.0, 0.0, 0)
    assert [device.quarantine for device in found.devices] == [closed.closed, closed.closed, "", closed.closed]


def test_in_line_everything_is_offered_whoever_holds_it() -> None:
    found, slots = Offer(Terms(in_line=True)).look(less(cores=16, mib=16_384, gpus=4), [], [], "")
    assert (found.cpu_count, found.memory_gb, slots) == (16.0, 16.0, 16)
    assert not any(device.quarantine for device in found.devices)


def test_devices_that_others_hold_are_named_and_ours_never_are() -> None:
    waiting = ours(1.0, 0, (3,))
    found, _ = Offer(Terms()).look(less(gpus=2), [], [waiting], "")
    assert [device.quarantine for device in found.devices] == ["", OTHERS, OTHERS, ""]


def test_one_look_alone_moves_nothing_and_two_that_agree_do() -> None:
    def amounts(cores: float) -> Amounts:
        return Amounts(cores, int(cores), 0, 0)

    current = amounts(8)
    assert steadied(current, amounts(8), amounts(3)) == current
    assert steadied(current, amounts(3), amounts(5)) == amounts(5)
    assert steadied(current, amounts(12), amounts(9)) == amounts(9)
    assert steadied(current, amounts(3), amounts(12)) == current


def test_a_job_that_ends_between_two_looks_is_not_taken_for_room_that_others_gave_back() -> None:
    offer = Offer(Terms())
    held = less(cores=10)
    mine = [ours(2.0)]
    for _ in range(2):
        assert offer.look(held, mine, mine, "")[0].cpu_count == 8.0
    assert offer.look(less(cores=8), mine, mine, "")[0].cpu_count == 8.0, "it is seen as running, and its cores as free"
    assert offer.look(less(cores=8), [], [], "")[0].cpu_count == 8.0
