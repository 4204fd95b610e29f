// All machines, kept current: a few that changed are asked for one by one, many at once.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, part, Problem } from "../api";
import { useLines } from "../live";
import { expelled } from "../session";
import type { Worker } from "../shapes";

const ONE_BY_ONE = 6;
const AGAIN_MS = 1000;
const ANYWAY_MS = 10_000;

export function useMachines(): { machines: Worker[] | undefined; problem: Problem | null } {
  const [machines, setMachines] = useState<Worker[]>();
  const [problem, setProblem] = useState<Problem | null>(null);
  const state = useRef({ changed: new Set<string>(), all: true, busy: false, timer: 0, over: false });
  const here = state.current;

  function soon(wait = AGAIN_MS): void {
    if (!here.timer && !here.over) here.timer = window.setTimeout(() => void look(), wait);
  }

  async function look(): Promise<void> {
    here.timer = 0;
    if (here.busy || document.hidden) return soon();
    const names = [...here.changed];
    const whole = here.all || names.length > ONE_BY_ONE;
    here.changed.clear();
    here.all = false;
    here.busy = true;
    try {
      if (whole) {
        const found = await allMachines();
        setMachines(found);
      } else if (names.length) {
        const found = await Promise.all(names.map(oneMachine));
        setMachines((known = []) => merged(known, names, found));
      }
      setProblem(null);
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

async function allMachines(): Promise<Worker[]> {
  const found: Worker[] = [];
  let cursor = "";
  do {
    const page = await ask<{ workers: Worker[]; next: string | null }>(
      `/v1/workers?limit=500${cursor && `&cursor=${part(cursor)}`}`,
    );
    found.push(...page.workers);
    cursor = page.next ?? "";
  } while (cursor);
  return found;
}

async function oneMachine(name: string): Promise<Worker | null> {
  try {
    return await ask<Worker>(`/v1/workers/${part(name)}`);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

function merged(known: Worker[], names: string[], found: (Worker | null)[]): Worker[] {
  const byName = new Map(known.map((machine) => [machine.id, machine]));
  names.forEach((name, index) => {
    const machine = found[index];
    if (machine) byName.set(name, machine);
    else byName.delete(name);
  });
  return [...byName.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
}
