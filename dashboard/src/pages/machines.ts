// All machines, each in a signal of its own, so that what changes on one is drawn for that one: those that changed are
// asked for by their names, and all of them now and then.

import { signal, type Signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, part, Problem } from "../api";
import { useLines } from "../live";
import { expelled } from "../session";
import type { Worker } from "../shapes";

const NAMES_AT_ONCE = 50;
const MOST_NAMES = 200;
const AGAIN_MS = 1000;
const ANYWAY_MS = 10_000;

export type Machines = Map<string, Signal<Worker>>;

interface Known {
  machines: Machines | undefined;
  problem: Problem | null;
}

interface Listing {
  workers: Worker[];
  next: string | null;
}

/** The map is another one only when machines came or went. `changed` hears of every look that found something. */
export function useMachines(changed: () => void): Known {
  const [machines, setMachines] = useState<Machines>();
  const [problem, setProblem] = useState<Problem | null>(null);
  const state = useRef({ machines: undefined as Machines | undefined, changed: new Set<string>(), all: true, busy: false, timer: 0, over: false });
  const here = state.current;

  function soon(wait = AGAIN_MS): void {
    if (!here.timer && !here.over) here.timer = window.setTimeout(() => void look(), wait);
  }

  async function look(): Promise<void> {
    here.timer = 0;
    if (here.busy || document.hidden) return soon();
    const names = [...here.changed];
    const whole = here.all || names.length > MOST_NAMES;
    here.changed.clear();
    here.all = false;
    here.busy = true;
    try {
      const found = whole ? await everyMachine() : await those(names);
      const next = merged(here.machines, found, whole ? null : names);
      if (next !== here.machines) setMachines((here.machines = next));
      setProblem(null);
      changed();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 401) expelled();
      setProblem(error);
      here.all = true;
      soon(3000);
    } finally {
      here.busy = false;
      if (here.all || here.changed.size) soon();
    }
  }

  useEffect(() => {
    void look();
    // Of what ends or is measured on a machine no event tells.
    const beat = window.setInterval(() => {
      here.all = true;
      soon(0);
    }, ANYWAY_MS);
    return () => {
      here.over = true;
      window.clearInterval(beat);
      window.clearTimeout(here.timer);
    };
  }, []);

  useLines((lines) => {
    if (lines.length === 0) here.all = true;
    for (const line of lines) {
      if (line.kind === "worker") here.changed.add(line.subject);
      else if (line.worker) here.changed.add(line.worker);
    }
    if (here.all || here.changed.size) soon();
  });

  return { machines, problem };
}

async function everyMachine(): Promise<Worker[]> {
  const found: Worker[] = [];
  let cursor = "";
  do {
    const page = await ask<Listing>(`/v1/workers?limit=500${cursor && `&cursor=${part(cursor)}`}`);
    found.push(...page.workers);
    cursor = page.next ?? "";
  } while (cursor);
  return found;
}

async function those(names: string[]): Promise<Worker[]> {
  const groups = [];
  for (let at = 0; at < names.length; at += NAMES_AT_ONCE) groups.push(names.slice(at, at + NAMES_AT_ONCE));
  const asked = groups.map((some) => ask<Listing>(`/v1/workers?${some.map((name) => `id=${part(name)}`).join("&")}`));
  return (await Promise.all(asked)).flatMap((page) => page.workers);
}

/** `names` are those that were asked for; null: all. Whoever is not found any more has gone. */
function merged(known: Machines | undefined, found: Worker[], names: string[] | null): Machines {
  const here = new Set(found.map((machine) => machine.id));
  const gone = (names ?? [...(known?.keys() ?? [])]).filter((name) => known?.has(name) && !here.has(name));
  const fresh = found.filter((machine) => !known?.has(machine.id));
  for (const machine of found) {
    const shown = known?.get(machine.id);
    if (shown) shown.value = machine;
  }
  if (known && !gone.length && !fresh.length) return known;
  const all = new Map(known);
  for (const name of gone) all.delete(name);
  for (const machine of fresh) all.set(machine.id, signal(machine));
  return new Map([...all].sort(([a], [b]) => (a < b ? -1 : 1)));
}
