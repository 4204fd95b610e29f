// Every machine and every device: what holds each part of it, what is free, and who was heard when.

import type { Signal } from "@preact/signals";
import { useMemo, useRef, useState } from "preact/hooks";
import { count, gigabytes } from "../format";
import { useResource } from "../live";
import { Bar, Meter, type Piece } from "../parts/bar";
import { useNear } from "../parts/near";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Overview } from "../parts/overview";
import { State } from "../parts/state";
import { Ago } from "../parts/when";
import { link } from "../router";
import type { Device, Status, Worker } from "../shapes";
import { useMachines } from "./machines";

const FEW = 12;

export function Fleet() {
  const status = useResource<Status>("/v1/status", { concerns: () => true, everyMs: 10_000, leastMs: 2000 });
  const [version, setVersion] = useState(0);
  const { machines, problem } = useMachines(() => setVersion((known) => known + 1));
  const [sought, setSought] = useState("");
  const shown = useMemo(
    () => [...(machines ?? [])].filter(([, machine]) => matches(machine.peek(), sought)),
    [machines, sought],
  );
  const shownNow = useMemo(() => () => shown.map(([, machine]) => machine.peek()), [shown]);
  const cards = useMemo(() => shown.map(([id, machine]) => <Machine key={id} id={id} of={machine} />), [shown]);
  if (!machines) return problem ? <Trouble problem={problem} /> : <Loading />;
  return (
    <>
      <div class="head">
        <h1>Fleet</h1>
        <input
          type="search"
          placeholder="Find machines: name, GPU, label  ( / )"
          aria-label="Find machines"
          size={34}
          value={sought}
          onInput={(event) => setSought(event.currentTarget.value)}
        />
        {sought && <span class="dim">{count(shown.length, "machine")}</span>}
      </div>
      <Trouble problem={problem ?? status.problem} />
      {status.data && <Tiles status={status.data} />}
      {machines.size === 0 && (
        <Empty title="No machine has joined yet">
          <p>
            On this machine: <code>ostler worker --hub {location.origin}</code>
          </p>
          <p>
            For another one, <code>ostler token create --join</code> prints the command to run there.
          </p>
        </Empty>
      )}
      {machines.size > 0 && shown.length === 0 && (
        <Empty title={`No machine matches “${sought}”`}>
          <button type="button" onClick={() => setSought("")}>
            Show all machines
          </button>
        </Empty>
      )}
      {shown.length > FEW && <Overview machines={shownNow} version={version} />}
      <div class="fleet">{cards}</div>
    </>
  );
}

function matches(machine: Worker, sought: string): boolean {
  const words = [machine.id, machine.backend, machine.status, ...machine.devices.map((device) => device.name)];
  for (const [label, value] of Object.entries(machine.labels)) words.push(`${label}=${value}`);
  const text = words.join(" ").toLowerCase();
  return sought
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function free(gpus: Status["gpus"]): string {
  if (!gpus.total) return "this fleet has none";
  return gpus.held === gpus.total ? "none is free" : `${(gpus.total - gpus.held).toLocaleString()} free`;
}

function Tiles({ status }: { status: Status }) {
  const up = status.workers.ready + status.workers.busy;
  const tiles: [name: string, value: string, more: string][] = [
    ["machines", up.toLocaleString(), status.workers.offline ? `${status.workers.offline} offline` : "all in contact"],
    ["GPUs held", `${status.gpus.held.toLocaleString()} / ${status.gpus.total.toLocaleString()}`, free(status.gpus)],
    ["cores held", `${Math.round(status.cores.held).toLocaleString()} / ${Math.round(status.cores.total).toLocaleString()}`, ""],
    ["running", (status.jobs["running"] ?? 0).toLocaleString(), status.jobs["orphaned"] ? `${status.jobs["orphaned"]} orphaned` : ""],
    ["waiting", (status.jobs["pending"] ?? 0).toLocaleString(), ""],
    ["failed", (status.ended["failed"] ?? 0).toLocaleString(), `${(status.ended["succeeded"] ?? 0).toLocaleString()} succeeded`],
  ];
  return (
    <div class="tiles">
      {tiles.map(([name, value, more]) => (
        <div class="card tile" key={name}>
          <div class="dim">{name}</div>
          <div class="value">{value}</div>
          <div class="dim">{more}</div>
        </div>
      ))}
    </div>
  );
}

/** Of a machine that nobody sees, what was last shown stays as it was. */
function Machine({ id, of }: { id: string; of: Signal<Worker> }) {
  const card = useRef<HTMLElement>(null);
  const seen = useRef<Worker>(undefined);
  if (useNear(card)) seen.current = of.value;
  const machine = seen.current;
  return (
    <article ref={card} class="card machine" aria-label={`Machine ${id}`}>
      <header>
        <a class="clip" href={link("machine", id)}>
          {id}
        </a>
        {machine && <State of={machine.status !== "offline" && machine.draining ? "draining" : machine.status} />}
      </header>
      {machine && machine.devices.length > 0 && (
        <div class="devices">
          {machine.devices.map((device) => (
            <DeviceCell key={device.index} device={device} />
          ))}
        </div>
      )}
      {machine && (
        <>
          <Meter name="cores" held={machine.cpu_count - machine.free.cores} total={machine.cpu_count} unit="" />
          <Meter name="memory" held={machine.memory_gb - machine.free.memory_gb} total={machine.memory_gb} unit="GiB" />
          <div class="dim">
            {machine.active_jobs ? count(machine.active_jobs, "task") : "idle"} · heard <Ago at={machine.last_contact} />
          </div>
        </>
      )}
    </article>
  );
}

export function DeviceCell({ device }: { device: Device }) {
  const heldWhole = device.held_by.some((holder) => holder.vram_gb === null);
  const pieces: Piece[] = device.held_by.map((holder) => ({
    share: holder.vram_gb === null ? 1 : holder.vram_gb / (device.vram_gb || 1),
    look: "running",
    title: `${holder.task_id}${holder.vram_gb === null ? "" : `: ${gigabytes(holder.vram_gb)}`}`,
  }));
  const outside = device.vram_gb - device.vram_free_gb - pieces.reduce((sum, piece) => sum + piece.share, 0) * device.vram_gb;
  if (!heldWhole && outside > 0.5) {
    pieces.push({ share: outside / device.vram_gb, look: "waiting", title: `outside use: ${gigabytes(outside)}` });
  }
  const free = heldWhole ? "held" : `${gigabytes(device.vram_free_gb)}`;
  const label = `GPU ${device.index}, ${device.name}: ${heldWhole ? "held whole" : `${free} of ${gigabytes(device.vram_gb)} free`}`;
  return (
    <div class="device" title={[label, ...pieces.map((piece) => piece.title ?? "")].join("\n")}>
      <Bar pieces={pieces} label={label} />
      <span aria-hidden="true">
        {device.index}
        <br />
        {free}
      </span>
    </div>
  );
}
