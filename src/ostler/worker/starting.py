"""From an order to its process: what the task needs is brought here first, then it is launched."""

import asyncio
import logging
import shutil
import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ostler.archive.unpack import BadArchive
from ostler.domain.worker import Capabilities
from ostler.runtime.attempts import WORK
from ostler.runtime.base import Launch, Runtime
from ostler.runtime.identity import Identity, give
from ostler.runtime.prune import remove
from ostler.worker.api import Declined, Missing
from ostler.worker.blobs import Blobs
from ostler.worker.carrying import Carrier
from ostler.worker.checkpoints import Checkpoints
from ostler.worker.events import Launched, LaunchFailed
from ostler.worker.gpus import Gpus
from ostler.worker.launching import PLAIN, Alike, Place, make_launch
from ostler.worker.orders import Facts, Order
from ostler.worker.secrets import Secrets
from ostler.worker.services import Services
from ostler.worker.snapshots import Snapshots

_log = logging.getLogger("ostler.worker")
LetGo = dict[str, tuple[str, ...]]
"""By attempt: for whom those behind it are to wait, now that it has been launched, or will not be."""


class CannotStart(Exception):
    """The task would fail in the same way on any worker."""


class _Foreseen(NamedTuple):
    """An order that may come, and what will be launched if it does."""

    order: Order
    checkpoint: str
    launch: Launch


class Starts:
    def __init__(
        self,
        runtime: Runtime,
        place: Place,
        *,
        blobs: Blobs,
        snapshots: Snapshots,
        checkpoints: Checkpoints,
        carrier: Carrier,
        services: Services,
        gpus: Gpus,
        secrets: Secrets,
        capabilities: Callable[[], Capabilities],
        tell: Callable[[Launched | LaunchFailed], None],
    ) -> None:
        self._runtime = runtime
        self._place = place
        self._blobs = blobs
        self._snapshots = snapshots
        self._checkpoints = checkpoints
        self._carrier = carrier
        self._services = services
        self._gpus = gpus
        self._secrets = secrets
        self._capabilities = capabilities
        self._tell = tell
        self._preparing: dict[str, asyncio.Task[LetGo]] = {}
        """What has not been launched, and who will launch it."""
        self._behind: dict[str, list[Order]] = {}
        """By the attempt that they wait behind: those that need nothing but to be launched after it."""
        self._following: set[str] = set()
        """These, as far as they are not called off."""
        self._foreseen: _Foreseen | None = None
        self._alike = Alike()
        self._copies: set[str] = set()
        """Attempts whose working directory is a copy of a snapshot."""

    def foresee(self, order: Order | None) -> None:
        """This one may come next, or none may: what can be thought of now need not be then. Only what is plain is
        foreseen, and nothing is done for it here that could be seen."""
        self._foreseen = None
        if order is None or order.facts != PLAIN or order.after or order.gang or not self._needs_nothing(order):
            return
        try:
            checkpoint = self._checkpoints.path(order.task_id)
            launch = self._launch_of(order, order.facts, checkpoint, None)
        except (OSError, ValueError):
            return  # that is told when it comes
        self._foreseen = _Foreseen(order, checkpoint, launch)
        self._runtime.prepare(launch)

    async def begin(self, order: Order) -> None:
        """Nearly every task is launched at once; one that needs something first, when it is here."""
        if self._needs_nothing(order):
            before = [name for name in order.after if name in self._preparing]
            if not before:
                await self._attempt(order)
                return
            if len(order.after) == 1:
                self._behind.setdefault(before[0], []).append(order)
                self._following.add(order.attempt)
                self._preparing[order.attempt] = self._preparing[before[0]]
                return
        task = asyncio.get_running_loop().create_task(self._prepare_and_launch(order))
        self._preparing[order.attempt] = task
        task.add_done_callback(_complain)

    def call_off(self, attempt: str) -> bool:
        """True if it had not been launched, and now will not be."""
        preparing = self._preparing.pop(attempt, None)
        if preparing is None:
            return False
        if attempt in self._following:
            self._following.discard(attempt)
        else:
            preparing.cancel()
        return True

    def took_back(self, attempt: str, facts: Facts) -> None:
        """An earlier process of this worker has started it."""
        self._secrets.took_back(attempt)
        if facts.snapshot:
            self._copies.add(attempt)

    async def clear(self, attempt: str) -> None:
        """It is over and its result is with the hub: its copy of a snapshot may be large, and goes at once."""
        if attempt in self._copies:
            self._copies.discard(attempt)
            await asyncio.to_thread(remove, self._runtime.folder(attempt) / WORK)

    def is_to_clear(self, attempt: str) -> bool:
        return attempt in self._copies

    async def close(self) -> None:
        preparing = set(self._preparing.values())
        self._behind.clear()
        for task in preparing:
            task.cancel()
        await asyncio.gather(*preparing, return_exceptions=True)

    def _needs_nothing(self, order: Order) -> bool:
        blob = order.payload.blob if order.payload is not None else ""
        is_here = not order.facts.snapshot and (not blob or self._blobs.has(blob))
        return is_here and not self._carrier.is_elsewhere(order) and not self._is_measured(order)

    def _is_measured(self, order: Order) -> bool:
        """Whether its devices are looked at before it starts, so as to see afterwards what it has left there."""
        return order.facts.whole and bool(order.facts.devices) and self._gpus.can_see

    async def _prepare_and_launch(self, order: Order) -> LetGo:
        """It, and at once all that have lined up behind it: one by one they would cost more than what they run."""
        before_it = {name: self._preparing.get(name) for name in order.after}
        try:
            told = {order.attempt: await self._attempt(order, prepare=True)}
        except asyncio.CancelledError:  # it was called off, and those behind it were not
            told = {order.attempt: await _let_go_first(before_it)}
        line = deque((order.attempt,))
        while line:
            before = line.popleft()
            for following in self._behind.pop(before, ()):
                line.append(following.attempt)
                told[following.attempt] = told[before]
                if following.attempt in self._following:
                    self._following.discard(following.attempt)
                    self._preparing.pop(following.attempt)
                    placed = msgspec.structs.replace(following, after=told[before])
                    told[following.attempt] = await self._attempt(placed)
        return told

    async def _attempt(self, order: Order, *, prepare: bool = False) -> tuple[str, ...]:
        attempt = order.attempt
        before = {name: self._preparing.get(name) for name in order.after}
        try:
            facts = await self._prepare(order) if prepare else order.facts
            if before:
                order = msgspec.structs.replace(order, after=await _let_go_first(before))
            # From here on it is the runtime that stops it.
            self._preparing.pop(attempt, None)
            if facts.service:
                facts = msgspec.structs.replace(facts, port=self._services.allot(attempt, order.wanted_port))
            await self._launch(order, facts)
            if facts is not order.facts:
                self._tell(Launched(attempt=attempt, facts=facts))
            return (attempt,)
        except CannotStart as reason:
            self._tell(LaunchFailed(attempt=attempt, error=str(reason), by_task=True))
        except (OSError, ValueError) as error:
            self._tell(LaunchFailed(attempt=attempt, error=str(error)))
        finally:
            if prepare and self._preparing.get(attempt) is asyncio.current_task():
                del self._preparing[attempt]
        return await _let_go_first(before)

    async def _prepare(self, order: Order) -> Facts:
        blob = order.payload.blob if order.payload is not None else ""
        if blob and not self._blobs.has(blob):
            try:
                await self._blobs.fetch(blob)
            except Declined as refusal:
                raise CannotStart(f"the function could not be fetched: {refusal}") from None
        if order.facts.snapshot:
            await self._copy_snapshot(order.attempt, order.facts.snapshot, self._place.identity(order.spec.user_id))
        if self._carrier.is_elsewhere(order):
            await self._carrier.fetch(order)
        if not self._is_measured(order):
            return order.facts
        return msgspec.structs.replace(order.facts, baseline_mib=await self._gpus.baseline(order.facts.devices))

    async def _copy_snapshot(self, attempt: str, sha256: str, user: Identity | None) -> None:
        folder = self._runtime.folder(attempt)
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            await self._snapshots.copy(sha256, folder / WORK)
            if user is not None:
                await asyncio.to_thread(give, str(folder / WORK), user)
        except BaseException as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, Missing):
                raise CannotStart(f"the hub has no snapshot {sha256}") from None
            if isinstance(error, BadArchive):
                raise CannotStart(f"snapshot {sha256} cannot be used: {error}") from None
            raise
        self._copies.add(attempt)

    async def _launch(self, order: Order, facts: Facts) -> None:
        user = self._place.identity(order.spec.user_id)
        try:
            given = self._secrets.give(order, user)
        except LookupError as error:
            raise CannotStart(str(error)) from None
        checkpoint = self._checkpoints.open(order.task_id, user, is_short=bool(order.after))
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and (foreseen.order, foreseen.checkpoint) == (order, checkpoint):
            launch = foreseen.launch
        else:
            launch = self._launch_of(order, facts, checkpoint, None if given is None else given.environment())
        await self._runtime.launch(launch)
        self._carrier.begun(order.attempt, order.task_id, order.checkpoint)
        if facts.port:
            self._services.watch(order.attempt, facts.port, facts.checks)

    def _launch_of(self, order: Order, facts: Facts, checkpoint: str, secrets: dict[str, str] | None) -> Launch:
        capabilities, home = self._capabilities(), self._runtime.path(order.attempt)
        if order.after and (launch := self._alike.next(order, capabilities, home, checkpoint)) is not None:
            return launch
        blob = order.payload.blob if order.payload is not None else ""
        launch = make_launch(
            order,
            self._place,
            facts,
            capabilities=capabilities,
            home=home,
            checkpoint=checkpoint,
            blob=self._blobs.path(blob) if blob else None,
            python=sys.executable,
            secrets=secrets,
        )
        if order.after:
            self._alike.made(order, capabilities, launch)
        return launch


async def _let_go_first(before: dict[str, asyncio.Task[LetGo] | None]) -> tuple[str, ...]:
    """The runtime holds one back until these have ended, and knows only of what it was given: of one that it was not
    given after all, until those have that it was to come after."""
    found: tuple[str, ...] = ()
    for name, preparing in before.items():
        if preparing is None:
            found += (name,)
            continue
        await asyncio.wait({preparing})
        if not preparing.cancelled() and preparing.exception() is None:
            found += preparing.result().get(name, ())
    return found


def _complain(task: asyncio.Task[LetGo]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a bug: a task could not be prepared", exc_info=error)
