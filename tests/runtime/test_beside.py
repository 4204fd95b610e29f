"""One more process of an attempt: it has what the attempt has, and never lasts longer."""

import asyncio

from tests.runtime.tasks import WAIT_S, A, B, Ends, Signpost, processes_of, shell

from ostler.runtime.frames import pack
from ostler.runtime.process import ProcessRuntime

WAITS = "while :; do sleep 0.05; done"
STUBBORN = "trap '' TERM HUP INT; "


async def test_it_has_the_environment_the_folder_and_its_own_variables(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    await runtime.launch(shell(A, WAITS))
    script = f'echo "$OSTLER_ATTEMPT $MORE $(pwd)" > {post.path}'
    assert await runtime.beside(A, ["sh", "-c", script], {"MORE": "than that"}) == ""
    assert (await post.read()).strip() == f"{A} than that {runtime.folder(A)}/work"
    assert (runtime.folder(A) / "log").read_text() == ""


async def test_a_task_that_ends_takes_it_along_and_is_over_then(
    runtime: ProcessRuntime, ends: Ends, post: Signpost
) -> None:
    go = runtime.folder(A).parent.parent / "go"
    await runtime.launch(shell(A, f"while [ ! -e {go} ]; do sleep 0.02; done; exit 3"))
    assert await runtime.beside(A, ["sh", "-c", f"{STUBBORN} echo > {post.path}; {WAITS}"], {}) == ""
    await post.read()
    go.touch()
    assert (await ends.of(A)).exit_code == 3
    assert processes_of(A) == []


async def test_a_task_that_is_stopped_takes_it_along(runtime: ProcessRuntime, ends: Ends, post: Signpost) -> None:
    await runtime.launch(shell(A, f"trap 'exit 5' TERM; {WAITS}"))
    # One that has left its session and its parent is no less the task's.
    script = f"setsid sh -c '{STUBBORN.replace(chr(39), chr(34))} echo > {post.path}; {WAITS}' & exit"
    assert await runtime.beside(A, ["sh", "-c", script], {}) == ""
    await post.read()
    await runtime.stop(A, "cancelled", 0.3)
    assert (await ends.of(A)).stopped == "cancelled"
    assert processes_of(A) == []


async def test_its_own_end_is_not_the_tasks(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(shell(A, WAITS))
    for _ in range(3):
        assert await runtime.beside(A, ["true"], {}) == ""
    await runtime.stop(A, "enough", 5.0)
    assert (await ends.of(A)).stopped == "enough"


async def test_there_is_none_beside_what_does_not_run_or_cannot_be_started(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(shell(A, "exit 0"))
    await ends.of(A)
    assert await runtime.beside(A, ["true"], {}) == "the task does not run here"
    await runtime.launch(shell(B, WAITS))
    assert "not found" in await runtime.beside(B, ["no-such-program"], {})
    await runtime.stop(B, "enough", 5.0)
    await ends.of(B)


async def test_an_older_supervisor_that_knows_no_such_order_costs_no_task(runtime: ProcessRuntime, ends: Ends) -> None:
    await runtime.launch(shell(A, WAITS))
    send = runtime._send
    runtime._send = lambda order: None if order["do"] == "beside" else send(order)  # type: ignore[method-assign]
    asking = asyncio.create_task(runtime.beside(A, ["true"], {}))
    await asyncio.sleep(0)
    runtime._heard(pack({"is": "refused", "attempt": "", "error": "ValueError: cannot 'beside' now"}))
    assert "is older than its worker" in await asyncio.wait_for(asking, WAIT_S)
    await runtime.stop(A, "enough", 5.0)
    assert (await ends.of(A)).stopped == "enough"
