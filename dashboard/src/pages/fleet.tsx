// Every machine and every device: what holds each part of it, what is free, and who was heard when.

import { useState } from "preact/hooks";
import { ago, count, gigabytes } from "../format";
import { useResource } from "../live";
import { Bar, Meter, type Piece } from "../parts/bar";
import { Empty, Loading, Trouble } from "../parts/notes";
import { State } from "../parts/state";
import { link } from "../router";
import type { Device, Status, Worker } from "../shapes";
import { useMachines } from "./machines";

export function Fleet() {
  const status = useResource<Status>("/v1/status", { concerns: () => true, everyMs: 10_000 });
  const { machines, problem } = useMachines();
  const [sought, setSought] = useState("");
  if (!machines) return problem ? <Trouble problem={problem} /> : <Loading />;
  const shown = machines.filter((machine) => matches(machine, sought));
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
      </div>
      <Trouble problem={problem ?? status.problem} />
      {status.data && <Tiles status={status.data} />}
      {machines.length === 0 && (
        <Empty title="No machine has joined yet">
          <p>
            On this machine: <code>ostler worker --hub http://127.0.0.1:7600</code>
          </p>
          <p>
            For another one, <code>ostler token create --join</code> prints the command to run there.
          </p>
        </Empty>
      )}
      {machines.length > 0 && shown.length === 0 && <Empty title={`No machine matches “${sought}”`} />}
      <div class="fleet">
        {shown.map((machine) => (
          <Machine key={machine.id} machine={machine} />
        ))}
      </div>
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

function Tiles({ status }: { status: Status }) {
  const up = status.workers.ready + status.workers.busy;
  const tiles: [name: string, value: string, more: string][] = [
    ["machines", `${up}`, status.workers.offline ? `${status.workers.offline} offline` : "all in contact"],
    ["GPUs held", `${status.gpus.held} / ${status.gpus.total}`, count(status.gpus.total - status.gpus.held, "free one")],
    ["cores held", `${Math.round(status.cores.held)} / ${Math.round(status.cores.total)}`, ""],
    ["running", `${status.jobs["running"] ?? 0}`, status.jobs["orphaned"] ? `${status.jobs["orphaned"]} orphaned` : ""],
    ["waiting", `${status.jobs["pending"] ?? 0}`, ""],
    ["failed", `${status.ended["failed"] ?? 0}`, `${status.ended["succeeded"] ?? 0} succeeded`],
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

function Machine({ machine }: { machine: Worker }) {
  const state = machine.status !== "offline" && machine.draining ? "draining" : machine.status;
  return (
    <article class="card machine" aria-label={`Machine ${machine.id}`}>
      <header>
        <a class="clip" href={link("machine", machine.id)}>
          {machine.id}
        </a>
        <State of={state} />
      </header>
      {machine.devices.length > 0 && (
        <div class="devices">
          {machine.devices.map((device) => (
            <DeviceCell key={device.index} device={device} />
          ))}
        </div>
      )}
      <Meter name="cores" held={machine.cpu_count - machine.free.cores} total={machine.cpu_count} unit="" />
      <Meter name="memory" held={machine.memory_gb - machine.free.memory_gb} total={machine.memory_gb} unit="GiB" />
      <div class="dim">
        {machine.active_jobs ? count(machine.active_jobs, "task") : "idle"} · heard {ago(machine.last_contact)}
      </div>
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
