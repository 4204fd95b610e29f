"""Whatever happens, in whatever order: nothing runs twice, nothing is lost, no GPU has two masters."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ostler.domain.worker import Capabilities
from ostler.runtime.base import Ended
from ostler.runtime.probe.usage import DeviceUsage
from ostler.wire.messages import JobAssign, JobResult, ServiceHealth
from ostler.worker.core import step
from ostler.worker.events import (
    OUTPUTS,
    VALUE,
    Acknowledged,
    Assigned,
    AwaitRelease,
    BeatDue,
    CancelAsked,
    CheckpointBrought,
    CollectOutcome,
    Connected,
    ConnectionLost,
    DevicesReleased,
    DevicesSeen,
    DrainAsked,
    DrainEnded,
    Event,
    ForgetTask,
    Launched,
    LaunchTask,
    OutcomeCollected,
    ProcessEnded,
    Send,
    ServiceProbed,
    StopTask,
)
from ostler.worker.orders import understand
from ostler.worker.state import State

ATTEMPTS = st.sampled_from([f"a{n}" for n in range(6)])
DEVICES = st.lists(st.integers(0, 2), max_size=2, unique=True)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = State(
            worker_id="w", boot_id="b", capabilities=Capabilities(), batch_slots=4, service_slots=1, connected=False
        )
        self.processes: dict[str, tuple[int, ...]] = {}
        self.whole: set[str] = set()
        self.launched: set[str] = set()
        self.collecting: set[str] = set()
        self.awaited: set[str] = set()
        self.told: dict[str, set[str]] = {}
        self.acknowledged: set[str] = set()

    def do(self, event: Event) -> None:
        for effect in step(self.state, event, 1.0):
            match effect:
                case LaunchTask():
                    self.launch(effect)
                case StopTask():
                    assert effect.attempt in self.processes
                case CollectOutcome():
                    assert self.state.connected
                    assert effect.attempt not in self.collecting
                    self.collecting.add(effect.attempt)
                case Send():
                    assert self.state.connected
                    if isinstance(effect.message, JobResult):
                        assert effect.message.attempt not in self.awaited
                        self.told.setdefault(effect.message.attempt, set()).add(effect.message.state)
                    if isinstance(effect.message, ServiceHealth):
                        assert effect.message.task_id.removeprefix("job-") in self.processes
                case AwaitRelease():
                    self.awaited.add(effect.attempt)
                case ForgetTask():
                    assert effect.attempt not in self.processes

    def launch(self, effect: LaunchTask) -> None:
        order = effect.order
        assert order.attempt not in self.processes
        assert order.attempt not in self.launched or order.attempt in self.acknowledged
        for other, devices in self.processes.items():
            if order.facts.whole or other in self.whole:
                assert not set(devices) & set(order.facts.devices)
        self.launched.add(order.attempt)
        self.acknowledged.discard(order.attempt)
        self.told.pop(order.attempt, None)
        self.processes[order.attempt] = order.facts.devices
        if order.facts.whole:
            self.whole.add(order.attempt)

    @rule(attempt=ATTEMPTS, devices=DEVICES, whole=st.booleans(), service=st.booleans())
    def assign(self, attempt: str, devices: list[int], whole: bool, service: bool) -> None:
        spec = {
            "id": f"job-{attempt}",
            "command": ["true"],
            "gpu_count": len(devices) if whole else 0,
            "type": "service" if service else "batch",
        }
        self.do(Assigned(understand(JobAssign(spec=spec, attempt=attempt, remaining_time=0, devices=devices))))

        if attempt in self.state.held and whole and devices:
            facts = msgspec.structs.replace(self.state.held[attempt].facts, baseline_mib=dict.fromkeys(devices, 500))
            self.do(Launched(attempt=attempt, facts=facts))

    @rule(attempt=ATTEMPTS, used=st.sampled_from([500, 5000]))
    def release(self, attempt: str, used: int) -> None:
        if attempt in self.awaited:
            self.awaited.discard(attempt)
            usages = [DeviceUsage(index=n, used_mib=used) for n in range(3)]
            self.do(DevicesReleased(attempt=attempt, usages=usages))

    @rule(used=st.sampled_from([500, 500, 5000]))
    def look(self, used: int) -> None:
        self.do(DevicesSeen([DeviceUsage(index=n, used_mib=used) for n in range(3)]))

    @rule(attempt=ATTEMPTS, not_ready=st.sampled_from(["", "busy"]), not_alive=st.sampled_from(["", "dead"]))
    def probe(self, attempt: str, not_ready: str, not_alive: str) -> None:
        self.do(ServiceProbed(attempt=attempt, not_ready=not_ready, not_alive=not_alive))

    @rule(attempt=ATTEMPTS, named=st.booleans())
    def cancel(self, attempt: str, named: bool) -> None:
        self.do(CancelAsked(task_id=f"job-{attempt}", attempt=attempt if named else ""))

    @rule(
        attempt=ATTEMPTS,
        exit_code=st.sampled_from([0, 1, 143]),
        stopped=st.sampled_from(["", "cancel: x", "drain", "liveness failed: x"]),
        nothing_to_bring=st.booleans(),
    )
    def end(self, attempt: str, exit_code: int, stopped: str, nothing_to_bring: bool) -> None:
        if self.processes.pop(attempt, None) is not None:
            self.whole.discard(attempt)
            end = Ended(attempt=attempt, task_id=f"job-{attempt}", exit_code=exit_code, stopped=stopped)
            self.do(ProcessEnded(end, nothing_to_bring))

    @rule(attempt=ATTEMPTS, lacking=st.sampled_from([None, "", VALUE, OUTPUTS]), progressed=st.booleans())
    def collect(self, attempt: str, lacking: str | None, progressed: bool) -> None:
        if attempt in self.collecting:
            self.collecting.discard(attempt)
            if lacking is None:
                self.do(OutcomeCollected(attempt=attempt))
            else:
                self.do(OutcomeCollected(attempt=attempt, unreachable=True, lacking=lacking, progressed=progressed))

    @rule(attempt=ATTEMPTS)
    def bring(self, attempt: str) -> None:
        self.do(CheckpointBrought(attempt=attempt, checkpoint="c"))

    @rule(attempt=ATTEMPTS)
    def acknowledge(self, attempt: str) -> None:
        if attempt in self.state.results:
            self.acknowledged.add(attempt)
        self.do(Acknowledged(task_id=f"job-{attempt}", attempt=attempt))

    @rule()
    def connect(self) -> None:
        if not self.state.connected:
            self.do(Connected())

    @rule()
    def lose(self) -> None:
        self.do(ConnectionLost())

    @rule(event=st.sampled_from([BeatDue(), BeatDue(), BeatDue(), DrainAsked(), DrainEnded()]))
    def happen(self, event: Event) -> None:
        self.do(event)

    @invariant()
    def every_attempt_is_in_one_place(self) -> None:
        state = self.state
        assert state.held.keys() == self.processes.keys()
        assert not state.held.keys() & state.endings.keys()
        assert not state.held.keys() & state.results.keys()
        assert not state.endings.keys() & state.results.keys()

    @invariant()
    def nothing_launched_is_lost(self) -> None:
        for attempt in self.launched - self.acknowledged:
            state = self.state
            assert attempt in state.held or attempt in state.endings or attempt in state.results

    @invariant()
    def an_attempt_has_one_outcome(self) -> None:
        """Until it is acknowledged: a worker that is asked to cancel what it has forgotten answers that it is gone."""
        kept = self.launched - self.acknowledged
        assert all(len(states) == 1 for attempt, states in self.told.items() if attempt in kept)

    @invariant()
    def slots_are_what_runs(self) -> None:
        slots = self.state.slots()
        assert slots.batch_in_use + slots.service_in_use == len(self.processes)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
