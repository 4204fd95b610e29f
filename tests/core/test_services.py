"""Services: they should not end; when they do, they rest a little and start again."""

from tests.core.yard import Yard

from ostler.core.events import ServiceReported


def yard_with_service(**spec: object) -> tuple[Yard, str]:
    yard = Yard()
    yard.worker("box", service_slots=4)
    service = yard.submit("web", type="service", **spec)
    yard.start(service)
    return yard, service


def test_a_service_that_ends_starts_again_with_growing_pauses() -> None:
    yard, service = yard_with_service()
    pauses = []
    for _ in range(4):
        yard.end(service, "failed")
        assert yard.state(service) == "pending"
        before = yard.now
        while yard.where(service) == "":
            yard.wait(0.5)
        pauses.append(yard.now - before)
        yard.start(service)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_exit_code_0_is_no_success_for_a_service() -> None:
    yard, service = yard_with_service()
    yard.end(service, "succeeded", exit_code=0)
    assert yard.state(service) == "pending"
    assert "ended by itself" in yard.why(service).summary


def test_a_bound_on_retries_ends_it() -> None:
    yard, service = yard_with_service(max_retries=1)
    yard.end(service, "failed")
    yard.wait(2)
    yard.start(service)
    yard.end(service, "failed")
    assert yard.state(service) == "failed"


def test_a_drained_service_moves_at_once() -> None:
    yard, service = yard_with_service()
    yard.worker("other", service_slots=1)
    yard.beat("box", draining=True)
    yard.end(service, "returned", fault="drain")
    assert yard.where(service) == "other"


def test_a_service_that_rests_is_found_again_after_a_restart() -> None:
    yard, service = yard_with_service()
    yard.end(service, "failed")
    yard.restart()
    yard.worker("new", service_slots=1)
    yard.wait(2)
    assert yard.where(service) == "new"


def test_its_health_is_kept_and_forgotten_when_it_ends() -> None:
    yard, service = yard_with_service()
    said = {"worker_id": "box", "session": yard.session("box"), "task_id": service}
    yard.turn(ServiceReported(healthy=False, message="503", **said))
    assert yard.task(service).health == "503"
    yard.turn(ServiceReported(healthy=True, **said))
    assert yard.task(service).health == "healthy"
    yard.end(service, "failed")
    assert yard.task(service).health == ""


def test_cancelling_a_service_that_rests_ends_it() -> None:
    yard, service = yard_with_service()
    yard.end(service, "failed")
    yard.cancel(service)
    assert yard.state(service) == "cancelled"
    yard.wait(5)
    assert yard.where(service) == ""
