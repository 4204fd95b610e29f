"""Configurations drawn from a seed, under each of which every model can be loaded when nothing else is in its way."""

from random import Random

from ostler.gateway.core.models import Config, Group, Recipe, Sets

NAMES = "abcdefg"


def draw_config(rng: Random, sizes: dict[str, float], *, first: bool = False) -> Config:
    names = [name for name in NAMES if first or rng.random() < 0.85] or ["a"]
    chosen = rng.random()
    grouped, sets = (), Sets()
    pins = {name for name in names if sizes[name] == 1.0 and rng.random() < 0.1}
    pins = set(sorted(pins)[:1])
    if chosen < 0.35:
        grouped = _draw_groups(rng, sizes, [name for name in names if name not in pins], may_persist=not pins)
    elif chosen < 0.5:
        free = [name for name in names if name not in pins]
        sets = Sets(
            members=tuple(tuple(rng.sample(free, min(len(free), rng.randint(1, 3)))) for _ in range(4)),
            evict_costs={name: rng.choice((1.0, 10.0)) for name in free},
        )
    return Config(
        models=tuple(_draw_recipe(rng, name, name in pins) for name in names),
        groups=grouped,
        sets=sets,
        quantum=rng.choice((0.0, 0.5, 8.0, 8.0, float("inf"))),
    )


def _draw_groups(rng: Random, sizes: dict[str, float], names: list[str], *, may_persist: bool) -> tuple[Group, ...]:
    half = len(names) // 2
    # What never goes is kept small, so that there is room for anything beside it.
    small = [name for name in names[:half] if sizes[name] == 1.0][:1]
    persistent = may_persist and bool(small) and rng.random() < 0.3
    return tuple(
        Group(
            members=tuple(members),
            swap=rng.random() < 0.7,
            exclusive=rng.random() < 0.7,
            persistent=persistent and members is small,
        )
        for members in ((small if persistent else names[:half]), names[half:])
        if members
    )


def _draw_recipe(rng: Random, name: str, pinned: bool) -> Recipe:
    return Recipe(
        name=name,
        digest=rng.choice("12"),
        ttl_s=rng.choice((0.0, 0.0, 5.0, 60.0)),
        pinned=pinned,
        concurrency=rng.choice((None, 1, 1, 2)),
        max_instances=rng.choice((1, 2, 3)),
        queue_limit=rng.choice((None, None, 3)),
        priority=rng.choice((0, 0, 0, 5)),
        load_s=rng.choice((None, 0.0, 2.0)),
        request_limit=rng.choice((None, None, None, 2, 4)),
    )
