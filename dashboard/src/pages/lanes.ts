// From attempts to what is drawn: a lane for each device, rows where things run side by side, and sums of where time went.

export interface Machine {
  id: string;
  cores: number;
  devices: { index: number; name: string }[];
}

export interface Block {
  attempt: string;
  task_id: string;
  job_id: string;
  worker: string;
  devices: number[];
  kind: "job" | "service" | "model";
  name: string;
  user: string;
  state: string;
  reason: string;
  started_at: string;
  finished_at: string | null;
}

export interface Away {
  worker: string;
  state: string;
  reason: string;
  since: string;
  until: string | null;
}

export interface Span {
  from: number;
  to: number;
  title: string;
}

export interface Drawn extends Span {
  key: string;
  row: number;
  job: string;
  look: string;
}

export interface Lane {
  key: string;
  machine: string;
  label: string;
  rows: number;
  blocks: Drawn[];
  away: Span[];
}

export interface Loss {
  machine: string;
  total: number;
  used: number;
  failed: number;
  away: number;
  idle: number;
}

const MOST_ROWS = 8;
const GOOD = new Set(["succeeded", "running", "assigned", "bound"]);
const seconds = (at: string) => Date.parse(at) / 1000;

function lookOf(block: Block): string {
  if (block.kind === "model") return "model";
  if (block.state === "succeeded") return "good";
  if (GOOD.has(block.state)) return "running";
  return block.state === "stopping" || block.state === "cancelled" ? "gone" : "bad";
}

function titleOf(block: Block, from: number, to: number): string {
  const name = block.name || block.task_id || "somebody else's";
  const lines = [`${name} (${block.kind}, ${block.state})`, `${Math.round((to - from) * 10) / 10} s`];
  return [...lines, block.user, block.reason].filter(Boolean).join("\n");
}

export function lanesOf(machines: Machine[], blocks: Block[], away: Away[], end: number): Lane[] {
  const byWorker = groups(blocks, (block) => block.worker);
  const gaps = groups(away, (gap) => gap.worker);
  return machines.flatMap((machine) => {
    const own = byWorker.get(machine.id) ?? [];
    const absent = (gaps.get(machine.id) ?? []).map((gap) => ({
      from: seconds(gap.since),
      to: gap.until ? seconds(gap.until) : end,
      title: `${gap.state}: ${gap.reason}`,
    }));
    const lane = (key: string, label: string, inside: Block[]): Lane => ({
      key: `${machine.id} ${key}`,
      machine: machine.id,
      label,
      away: absent,
      ...packed(inside, end),
    });
    const devices = machine.devices.map((device, order) =>
      lane(
        `gpu ${device.index}`,
        order === 0 ? `${machine.id} · ${device.index}` : `    ${device.index}`,
        own.filter((block) => block.devices.includes(device.index)),
      ),
    );
    const without = own.filter((block) => block.devices.length === 0);
    if (without.length || !devices.length) {
      devices.push(lane("cpu", devices.length ? "    cores" : machine.id, without));
    }
    return devices;
  });
}

/** Each in the first row that is free by then; what finds none goes over the last. */
function packed(blocks: Block[], end: number): { rows: number; blocks: Drawn[] } {
  const free: number[] = [];
  const drawn = [...blocks]
    .sort((a, b) => seconds(a.started_at) - seconds(b.started_at))
    .map((block, order): Drawn => {
      const from = seconds(block.started_at);
      const to = block.finished_at ? seconds(block.finished_at) : end;
      let row = free.findIndex((at) => at <= from);
      if (row < 0) row = free.length < MOST_ROWS ? free.length : MOST_ROWS - 1;
      free[row] = Math.max(to, free[row] ?? 0);
      const key = block.attempt || `${order}`;
      return { key, from, to, row, job: block.task_id, look: lookOf(block), title: titleOf(block, from, to) };
    });
  return { rows: Math.max(1, free.length), blocks: drawn };
}

export function lossesOf(machines: Machine[], blocks: Block[], away: Away[], from: number, to: number): Loss[] {
  const byWorker = groups(blocks, (block) => block.worker);
  const gaps = groups(away, (gap) => gap.worker);
  const within = (begin: string, end: string | null): [number, number] => [
    Math.max(from, seconds(begin)),
    Math.min(to, end ? seconds(end) : to),
  ];
  const found = machines.map((machine): Loss => {
    const own = byWorker.get(machine.id) ?? [];
    const lanes = machine.devices.length ? machine.devices.map((device) => device.index) : [null];
    const loss: Loss = { machine: machine.id, total: (to - from) * lanes.length, used: 0, failed: 0, away: 0, idle: 0 };
    const absent = (gaps.get(machine.id) ?? []).map((gap) => within(gap.since, gap.until));
    for (const device of lanes) {
      const here = own.filter((block) => device === null || block.devices.includes(device));
      const spans = (good: boolean) =>
        here
          .filter((block) => GOOD.has(block.state) === good)
          .map((block) => within(block.started_at, block.finished_at));
      const used = covered(spans(true));
      const held = covered([...spans(true), ...spans(false)]);
      const all = covered([...spans(true), ...spans(false), ...absent]);
      loss.used += used;
      loss.failed += held - used;
      loss.away += all - held;
      loss.idle += to - from - all;
    }
    return loss;
  });
  const sum: Loss = { machine: "", total: 0, used: 0, failed: 0, away: 0, idle: 0 };
  for (const loss of found) for (const key of ["total", "used", "failed", "away", "idle"] as const) sum[key] += loss[key];
  return found.length > 1 ? [...found, sum] : found;
}

/** How long at least one of them lasted. */
function covered(spans: [number, number][]): number {
  let total = 0;
  let reached = -Infinity;
  for (const [from, to] of spans.filter(([from, to]) => to > from).sort((a, b) => a[0] - b[0])) {
    total += Math.max(0, to - Math.max(from, reached));
    reached = Math.max(reached, to);
  }
  return total;
}

export function groups<T>(items: T[], keyOf: (item: T) => string): Map<string, T[]> {
  const found = new Map<string, T[]>();
  for (const item of items) {
    const known = found.get(keyOf(item));
    if (known) known.push(item);
    else found.set(keyOf(item), [item]);
  }
  return found;
}
