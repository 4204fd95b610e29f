"""What the gateway is configured with, as far as it decides anything."""

from collections.abc import Iterable, Iterator

import msgspec

from ostler.domain.errors import BadInput


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `digest` stands for all that its process is started with: another digest means another process."""

    name: str
    digest: str = ""
    aliases: tuple[str, ...] = ()
    ttl_s: float = 0.0
    """Unloaded after being idle for so long; 0: never."""
    pinned: bool = False
    concurrency: int | None = None
    """Requests served at once; None: any number."""
    max_instances: int = 1
    """Processes at once; a second one helps only where the first may not serve any number of requests."""
    queue_limit: int | None = None
    """Requests that may wait; None: any number."""
    request_limit: int | None = None
    """Requests that may be there at all, served and waiting ones together; None: any number."""
    priority: int = 0
    load_s: float | None = None
    """How long a load takes, until that has been measured; and where that was measured before."""
    load_at: dict[str, float] = {}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    members: tuple[str, ...]
    swap: bool = True
    """One member at a time."""
    exclusive: bool = True
    """Its load evicts the members of other groups."""
    persistent: bool = False
    """Never evicted by models outside the group."""


class Sets(msgspec.Struct, frozen=True, kw_only=True):
    """Which models may be together: those named here only if one set holds them all. The loss of evicting a model
    counts as many times as its cost says."""

    members: tuple[tuple[str, ...], ...] = ()
    evict_costs: dict[str, float] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[Recipe, ...] = ()
    groups: tuple[Group, ...] = ()
    sets: Sets = Sets()
    quantum: float = 8.0
    """A resident's turn while another model waits, in units of what the swap costs."""
    preload: tuple[str, ...] = ()


class Catalogue:
    """A configuration made quick to ask."""

    def __init__(self, config: Config) -> None:
        if problems := list(_problems(config)):
            raise BadInput(f"{problems[0][0]}: {problems[0][1]}", problems)
        self.config = config
        self.recipes = {recipe.name: recipe for recipe in config.models}
        self.names = {alias: recipe.name for recipe in config.models for alias in (recipe.name, *recipe.aliases)}
        """The model's name by any of its names."""
        self.group_of = {member: group for group in config.groups for member in group.members}
        self.sets = [frozenset(members) for members in config.sets.members]
        self.in_sets = frozenset[str]().union(*self.sets)

    def evict_cost(self, model: str) -> float:
        return self.config.sets.evict_costs.get(model, 1.0)

    def max_instances(self, model: str) -> int:
        recipe = self.recipes.get(model)
        return 1 if recipe is None else recipe.max_instances

    def pinned(self, model: str) -> bool:
        recipe = self.recipes.get(model)
        return recipe is not None and recipe.pinned

    def never_evicted_by(self, target: str, other: str) -> bool:
        """Whatever happens, the other stays."""
        group = self.group_of.get(other)
        kept = group is not None and group.persistent and group is not self.group_of.get(target)
        return kept or self.pinned(other)

    def may_join(self, target: str, staying: Iterable[str]) -> bool:
        """Groups and sets let the target be loaded beside these."""
        group = self.group_of.get(target)
        named = {target}
        for other in staying:
            if group is not None and self._clash(group, target, other):
                return False
            if other in self.in_sets:
                named.add(other)
        return target not in self.in_sets or len(named) == 1 or any(named <= members for members in self.sets)

    def _clash(self, group: Group, target: str, other: str) -> bool:
        theirs = self.group_of.get(other)
        if theirs is group:
            return group.swap and other != target
        return theirs is not None and group.exclusive and not self.never_evicted_by(target, other)


def _problems(config: Config) -> Iterator[tuple[str, str]]:
    known = {recipe.name for recipe in config.models}
    yield from (("models", what) for what in _taken_twice(config.models))
    yield from (("groups", what) for what in _in_two_groups(config.groups))
    for index, group in enumerate(config.groups):
        yield from ((f"groups[{index}]", what) for what in _unknown(group.members, known))
    for index, members in enumerate(config.sets.members):
        yield from ((f"sets[{index}]", what) for what in _unknown(members, known))
    yield from (("evict_costs", what) for what in _unknown(config.sets.evict_costs, known))
    yield from (("preload", what) for what in _unknown(config.preload, known))
    for index, recipe in enumerate(config.models):
        if recipe.max_instances < 1:
            yield f"models[{index}]", f"{recipe.name!r} may have {recipe.max_instances} processes; say 1 or more"
    if not config.quantum >= 0:
        yield "quantum", f"{config.quantum} is not a number from 0 to inf"


def _taken_twice(recipes: Iterable[Recipe]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for recipe in recipes:
        for name in (recipe.name, *recipe.aliases):
            if name in seen:
                yield f"{name!r} is the name of both {seen[name]!r} and {recipe.name!r}; keep one"
            seen[name] = recipe.name


def _in_two_groups(groups: Iterable[Group]) -> Iterator[str]:
    seen: set[str] = set()
    for group in groups:
        for member in group.members:
            if member in seen:
                yield f"{member!r} is a member twice; a model has one group at most"
            seen.add(member)


def _unknown(names: Iterable[str], known: set[str]) -> Iterator[str]:
    return (f"there is no model {name!r}" for name in names if name not in known)
