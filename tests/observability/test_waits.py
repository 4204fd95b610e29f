"""How long tasks waited is told of those that had room of their own from the beginning."""

from types import SimpleNamespace

from tests.core.core_fleet import CoreFleet
from tests.core.test_ahead import fleet

from ostler.core.persist import take_changes
from ostler.domain.records import Changes
from ostler.hub.metrics import Metrics
from ostler.hub.perform import Performer


class Silent:
    """Whatever it is asked, it has nothing to say: of a performer only the metrics are looked at here."""

    def __getattr__(self, name: str) -> "Silent":
        return self

    def __call__(self, *_: object, **__: object) -> None:
        return None


def waits(metrics: Metrics) -> float:
    found = metrics._waits.collect().samples
    return sum(sample.value for sample in found if sample.name.endswith("_count"))


async def told(core: CoreFleet, changes: Changes) -> float:
    metrics = Metrics(SimpleNamespace(fleet=core.fleet, now=lambda: core.now))  # type: ignore[arg-type]
    performer, silent = Performer(), Silent()
    performer.wire(silent, silent, silent, metrics, silent, silent, silent)  # type: ignore[arg-type]
    await performer(changes, [])
    return waits(metrics)


async def test_a_restart_counts_no_wait_of_those_that_were_sent_ahead() -> None:
    core = fleet(ahead=100)
    core.submit("a", array=80)
    core.now += 3600.0
    core.fleet = core.restored()
    changes = take_changes(core.fleet, core.now)
    assert len(changes.attempts) == 79
    assert await told(core, changes) == 0


async def test_one_that_is_placed_is_counted() -> None:
    core = fleet(ahead=100)
    seen: list[Changes] = []
    commit = core.ledger.commit
    core.ledger.commit = lambda changes: (seen.append(changes), commit(changes))[1]  # type: ignore[method-assign]
    core.submit("a", array=80)
    assert await told(core, seen[-1]) == 1
