"""The axes beside what they stand for: the matcher's choice of devices, and plain comparisons."""

from hypothesis import given
from hypothesis import strategies as st

from ostler.core.axes import Axis, Gpus, gpu_need
from ostler.core.holding import Grant, Holding
from ostler.core.room import Room, pick_devices
from ostler.domain.resources import Device, Offer, Request

SIZES = st.sampled_from([0, 8_192, 16_384, 24_576])
SEEN = st.none() | st.integers(0, 24_576)
OFFERS = st.builds(
    lambda backend, sizes, seen, odd: Offer(
        backend=backend,
        devices=tuple(
            Device(index, size, free_mib=seen, quarantine="dirty" if index == odd else "")
            for index, size in enumerate(sizes)
        ),
    ),
    st.sampled_from(["nvidia", "metal"]),
    st.lists(SIZES, max_size=4),
    SEEN,
    st.integers(-1, 5),
)
HOLDINGS = st.lists(
    st.builds(
        lambda devices, share: Holding(grant=Grant(tuple(sorted(devices)), share)),
        st.sets(st.integers(0, 3), min_size=1, max_size=3),
        st.sampled_from([0, 1_000, 9_000]),
    ),
    max_size=3,
)
NEEDS = st.builds(
    lambda gpus, vram, milli, prefers: Request(
        gpu_count=gpus, vram_mib=vram, gpu_milli=0 if gpus else milli, prefers_cuda=prefers
    ),
    st.integers(0, 4),
    st.sampled_from([0, 1, 7_192, 8_192, 20_000, 40_000]),
    st.sampled_from([0, 1, 333, 999]),
    st.booleans(),
)


def room_with(offer: Offer, held: list[Holding]) -> Room:
    room = Room(offer)
    for one in held:
        room.take(one)
    return room


@given(OFFERS, HOLDINGS, st.lists(NEEDS, min_size=1, max_size=8, unique=True), st.booleans())
def test_devices_are_said_to_be_enough_where_the_matcher_finds_some(
    offer: Offer, held: list[Holding], requests: list[Request], needs_first: bool
) -> None:
    gpus = Gpus()
    gpus.add_worker()
    room = room_with(offer, held)
    if not needs_first:
        gpus.set_room(0, room)
    wanted = [gpus.change(gpu_need(request), 1 << number) for number, request in enumerate(requests)]
    if needs_first:
        gpus.set_room(0, room)
    truth = [pick_devices(request, room) is not None for request in requests]
    assert [bool(gpus.served_by(0) >> number & 1) for number in range(len(requests))] == truth
    assert [bool(gpus.able(one)) for one in wanted] == truth


@given(OFFERS, HOLDINGS, HOLDINGS, st.lists(NEEDS, min_size=2, max_size=6, unique=True))
def test_what_was_taken_back_is_as_if_it_had_never_been(
    offer: Offer, held: list[Holding], later: list[Holding], requests: list[Request]
) -> None:
    gpus = Gpus()
    gpus.add_worker()
    for number, request in enumerate(requests):
        gpus.change(gpu_need(request), 1 << number)
    gpus.set_room(0, room_with(offer, held))
    gpus.change(gpu_need(requests[0]), 1)
    gpus.set_room(0, room_with(offer, later))
    again = gpus.change(gpu_need(requests[0]), 1)
    truth = [pick_devices(request, room_with(offer, later)) is not None for request in requests]
    assert [bool(gpus.served_by(0) >> number & 1) for number in range(len(requests))] == truth
    assert bool(gpus.able(again)) == truth[0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=40), st.sets(st.integers(0, 9), min_size=1))
def test_an_amount_answers_both_ways_as_plain_comparisons_would(
    changes: list[tuple[int, int]], needs: set[int]
) -> None:
    axis, free = Axis(), [-1] * 6
    for _ in free:
        axis.add_worker()
    for number, need in enumerate(sorted(needs)):
        axis.change(need, 1 << number)
    for worker, amount in changes:
        axis.set_free(worker, amount)
        free[worker] = amount
        for number, need in enumerate(sorted(needs)):
            enough = sum(1 << one for one, has in enumerate(free) if has >= need)
            assert axis.at_least(need) == enough
            assert bool(axis.within(amount) >> number & 1) == (need <= amount)
