"""Whatever happens, in whatever order: the fleet never contradicts itself, and nothing that was accepted is lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.core.following import EDITS, ENTRIES, HOSTS
from tests.core.pulling import ENDS, SAID
from tests.core.random_fleet import NO_EXPLAIN, OFFERS, OUTCOMES, PAUSES, SPECS, RandomFleet

few = st.integers(0, 5)
some = st.integers(0, 11)
puller = st.integers(0, 2)
said = st.integers(0, len(SAID) - 1)
end = st.integers(0, len(ENDS) - 1)
entry = st.integers(0, ENTRIES - 1)
edit = st.integers(0, len(EDITS) - 1)


class AnyOrder(RuleBasedStateMachine):
    """check() runs after every event, and what must hold of the ledger after every turn: see RandomFleet."""

    def __init__(self) -> None:
        super().__init__()
        self.random_fleet = RandomFleet()

    @initialize()
    def two_workers_join(self) -> None:
        self.random_fleet.register(0)
        self.random_fleet.register(1)

    @rule(spec=st.integers(0, len(SPECS) - 1))
    def submit(self, spec: int) -> None:
        self.random_fleet.submit(spec)

    @precondition(lambda self: self.random_fleet.jobs)
    @rule(job=some, index=some)
    def cancel(self, job: int, index: int) -> None:
        self.random_fleet.cancel(job, index)

    @precondition(lambda self: self.random_fleet.jobs)
    @rule(job=some, index=some)
    def requeue(self, job: int, index: int) -> None:
        self.random_fleet.requeue(job, index)

    @precondition(lambda self: self.random_fleet.jobs)
    @rule(job=some, index=some)
    def cancel_in_the_next_batch(self, job: int, index: int) -> None:
        self.random_fleet.cancel_soon(job, index)

    @precondition(lambda self: self.random_fleet.jobs)
    @rule(job=some, index=some)
    def requeue_in_the_next_batch(self, job: int, index: int) -> None:
        self.random_fleet.requeue_soon(job, index)

    @rule(entry=entry, edit=edit)
    def apply_a_manifest(self, entry: int, edit: int) -> None:
        self.random_fleet.apply(entry, edit)

    @rule(entry=entry, edit=edit)
    def apply_a_manifest_in_the_next_batch(self, entry: int, edit: int) -> None:
        self.random_fleet.apply_soon(entry, edit)

    @rule(hosts=st.integers(0, len(HOSTS) - 1))
    def change_what_the_manifest_says_of_hosts(self, hosts: int) -> None:
        self.random_fleet.change_hosts(hosts)

    @rule(machine=puller, said=said)
    def claim(self, machine: int, said: int) -> None:
        self.random_fleet.claim(machine, said)

    @rule(machine=puller, said=said)
    def claim_in_the_next_batch(self, machine: int, said: int) -> None:
        self.random_fleet.claim_soon(machine, said)

    @rule(machine=puller, said=said)
    def claim_and_lose_the_answer(self, machine: int, said: int) -> None:
        self.random_fleet.claim_unheard(machine, said)

    @precondition(lambda self: self.random_fleet.has_claims())
    @rule(machine=puller, heard=st.integers(0, 1))
    def beat_for_a_claim(self, machine: int, heard: int) -> None:
        self.random_fleet.pull_beat(machine, heard)

    @precondition(lambda self: self.random_fleet.has_claims())
    @rule(machine=puller)
    def beat_for_a_claim_in_the_next_batch(self, machine: int) -> None:
        self.random_fleet.pull_beat_soon(machine)

    @precondition(lambda self: self.random_fleet.has_claims())
    @rule(machine=puller, state=end)
    def end_a_claim(self, machine: int, state: int) -> None:
        self.random_fleet.pull_end(machine, state)

    @precondition(lambda self: self.random_fleet.has_claims())
    @rule(machine=puller, state=end)
    def end_a_claim_in_the_next_batch(self, machine: int, state: int) -> None:
        self.random_fleet.pull_end_soon(machine, state)

    @precondition(lambda self: any(machine.ended for machine in self.random_fleet.pullers))
    @rule(machine=puller, back=few)
    def say_the_end_of_a_claim_again(self, machine: int, back: int) -> None:
        self.random_fleet.pull_repeat(machine, back)

    @precondition(lambda self: self.random_fleet.has_claims())
    @rule(machine=puller)
    def lose_a_machine_that_claimed(self, machine: int) -> None:
        self.random_fleet.pull_crash(machine)

    @rule()
    def let_all_claim_or_beat(self) -> None:
        self.random_fleet.pull_round()

    @precondition(lambda self: any(machine.processes for machine in self.random_fleet.machines))
    @rule(worker=few, number=few)
    def leave_a_checkpoint(self, worker: int, number: int) -> None:
        self.random_fleet.checkpoint(worker, number)

    @rule(worker=few)
    def register(self, worker: int) -> None:
        self.random_fleet.register(worker)

    @rule(worker=few, with_account=st.integers(0, 1))
    def beat(self, worker: int, with_account: int) -> None:
        self.random_fleet.beat(worker, with_account)

    @rule(worker=few)
    def ask(self, worker: int) -> None:
        self.random_fleet.ask(worker)

    @rule(worker=few)
    def deliver_and_accept(self, worker: int) -> None:
        self.random_fleet.deliver(worker)

    @rule(worker=few, frames=few)
    def lose_frames_to(self, worker: int, frames: int) -> None:
        self.random_fleet.lose(worker, frames)

    @rule(worker=few)
    def speak(self, worker: int) -> None:
        self.random_fleet.speak(worker)

    @rule(worker=few)
    def lose_frames_from(self, worker: int) -> None:
        self.random_fleet.mumble(worker)

    @precondition(lambda self: any(machine.processes for machine in self.random_fleet.machines))
    @rule(worker=few, outcome=st.integers(0, len(OUTCOMES) - 1))
    def end(self, worker: int, outcome: int) -> None:
        self.random_fleet.end(worker, outcome)

    @precondition(lambda self: any(machine.results for machine in self.random_fleet.machines))
    @rule(worker=few)
    def send_kept_results_again(self, worker: int) -> None:
        self.random_fleet.repeat_results(worker)

    @precondition(lambda self: self.random_fleet.said)
    @rule(which=some, renewed=st.integers(0, 1))
    def send_an_old_message_again(self, which: int, renewed: int) -> None:
        self.random_fleet.say_again(which, renewed)

    @rule(worker=few)
    def disconnect(self, worker: int) -> None:
        self.random_fleet.disconnect(worker)

    @rule(worker=few)
    def go_quiet(self, worker: int) -> None:
        self.random_fleet.go_quiet(worker)

    @rule(worker=few, noticed=st.integers(0, 1))
    def lose_power(self, worker: int, noticed: int) -> None:
        self.random_fleet.lose_power(worker, noticed)

    @rule(worker=few, draining=st.integers(0, 1))
    def drain_or_resume(self, worker: int, draining: int) -> None:
        self.random_fleet.drain(worker, draining)

    @rule(worker=few, offer=st.integers(0, len(OFFERS) - 1))
    def change_offer(self, worker: int, offer: int) -> None:
        self.random_fleet.change_offer(worker, offer)

    @rule()
    def have_a_good_round(self) -> None:
        self.random_fleet.good_round()

    @rule()
    def all_come_back(self) -> None:
        self.random_fleet.all_come_back()

    @rule(worker=few, pause=st.integers(0, len(PAUSES) - 1))
    def be_away(self, worker: int, pause: int) -> None:
        self.random_fleet.be_away(worker, pause)

    @rule(pause=st.integers(0, len(PAUSES) - 1), silent=few)
    def pass_time(self, pause: int, silent: int) -> None:
        self.random_fleet.pass_time(pause, silent)

    @rule(seconds=few)
    def stall_hub(self, seconds: int) -> None:
        self.random_fleet.stall_hub(seconds)

    @rule(away=st.integers(0, 89))
    def restart_hub(self, away: int) -> None:
        self.random_fleet.restart_hub(away)

    def teardown(self) -> None:
        self.random_fleet.compare_with_ledger()


def examples(count: int) -> settings:
    return settings(max_examples=count, stateful_step_count=60, deadline=None, phases=NO_EXPLAIN)


class TestAnyOrder(AnyOrder.TestCase):  # type: ignore[misc]
    settings = examples(80)


@pytest.mark.long
class TestAnyOrderAtLength(AnyOrder.TestCase):  # type: ignore[misc]
    settings = examples(400)
