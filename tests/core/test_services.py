"""Services: they should not end; when they do, they rest a little and start again."""

from tests.core.core_fleet import CoreFleet

from ostler.core.events import ServiceReported


def core_with_service(**spec: object) -> tuple[CoreFleet, str]:
    core = CoreFleet()
    core.worker("box", service_slots=4)
    service = core.submit("web", type="service", **spec)
    core.start(service)
    return core, service


def test_a_service_that_ends_starts_again_with_growing_pauses() -> None:
    core, service = core_with_service()
    pauses = []
    for _ in range(4):
        core.end(service, "failed")
        assert core.state(service) == "pending"
        before = core.now
        while core.where(service) == "":
            core.wait(0.5)
        pauses.append(core.now - before)
        core.start(service)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_exit_code_0_is_no_success_for_a_service() -> None:
    core, service = core_with_service()
    core.end(service, "succeeded", exit_code=0)
    assert core.state(service) == "pending"
    assert "ended by itself" in core.why(service).summary


def test_a_bound_on_retries_ends_it() -> None:
    core, service = core_with_service(max_retries=1)
    core.end(service, "failed")
    core.wait(2)
    core.start(service)
    core.end(service, "failed")
    assert core.state(service) == "failed"


def test_a_drained_service_moves_at_once() -> None:
    core, service = core_with_service()
    core.worker("other", service_slots=1)
    core.beat("box", draining=True)
    core.end(service, "returned", fault="drain")
    assert core.where(service) == "other"


def test_a_service_that_rests_is_found_again_after_a_restart() -> None:
    core, service = core_with_service()
    core.end(service, "failed")
    core.restart()
    core.worker("new", service_slots=1)
    core.wait(2)
    assert core.where(service) == "new"


def test_its_health_is_kept_and_forgotten_when_it_ends() -> None:
    core, service = core_with_service()
    said = {"worker_id": "box", "session": core.session("box"), "task_id": service}
    core.turn(ServiceReported(healthy=False, message="503", **said))
    assert core.task(service).health == "503"
    core.turn(ServiceReported(healthy=True, **said))
    assert core.task(service).health == "healthy"
    core.end(service, "failed")
    assert core.task(service).health == ""


def test_cancelling_a_service_that_rests_ends_it() -> None:
    core, service = core_with_service()
    core.end(service, "failed")
    core.cancel(service)
    assert core.state(service) == "cancelled"
    core.wait(5)
    assert core.where(service) == ""
