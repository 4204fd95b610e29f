// What changes, as it changes: one stream of events for the whole page, handed on in batches, and documents that are
// fetched again when an event concerns them: never more often than once in a while, and not while nobody looks.

import { signal } from "@preact/signals";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ask, Problem } from "./api";
import { expelled, recall, session } from "./session";
import type { FeedLine } from "./shapes";

const BATCH_MS = 250;
const AGAIN_MS = 1000;
const AFTER_FAILURE_MS = 3000;

export const connected = signal(false);

type Listener = (lines: FeedLine[]) => void;
const listeners = new Set<Listener>();
let gathered: FeedLine[] = [];
let source: EventSource | null = null;

function deliver(): void {
  const lines = gathered;
  gathered = [];
  for (const listener of [...listeners]) listener(lines);
}

function take(event: MessageEvent<string>): void {
  gathered.push(JSON.parse(event.data) as FeedLine);
  if (gathered.length === 1) setTimeout(deliver, BATCH_MS);
}

/** While the page is looked at: over all tabs together, a browser has no more than six connections to a hub. */
export function follow(): () => void {
  const seen = () => (document.hidden ? leave() : listen());
  document.addEventListener("visibilitychange", seen);
  seen();
  return () => {
    document.removeEventListener("visibilitychange", seen);
    leave();
  };
}

function leave(): void {
  source?.close();
  source = null;
  connected.value = false;
}

function listen(): void {
  if (source) return;
  const opened = new EventSource("/v1/events");
  source = opened;
  for (const kind of ["job", "task", "worker", "model", "manifest"]) opened.addEventListener(kind, take);
  opened.onopen = () => {
    // What happened while nothing was heard may concern anything that is shown.
    if (!connected.value) for (const listener of [...listeners]) listener([]);
    connected.value = true;
  };
  opened.onerror = () => {
    connected.value = false;
    // A browser gives up for good when it is refused: because the session is over, or the hub starts again.
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => void tryAgain(opened), AFTER_FAILURE_MS);
  };
}

async function tryAgain(gone: EventSource): Promise<void> {
  if (source !== gone) return;
  try {
    await recall();
    if (source !== gone) return;
    leave();
    if (session.value) listen();
  } catch {
    setTimeout(() => void tryAgain(gone), AFTER_FAILURE_MS);
  }
}

export function useLines(listener: Listener): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    const heard: Listener = (lines) => latest.current(lines);
    listeners.add(heard);
    return () => void listeners.delete(heard);
  }, []);
}

export interface Resource<T> {
  /** What was last fetched; stays while it is fetched again, and when that fails. */
  data: T | undefined;
  problem: Problem | null;
  refresh: () => void;
}

interface Wanted<T> {
  /** Whether this line makes what is shown out of date. */
  concerns?: (line: FeedLine) => boolean;
  /** Fetch it again after so long in any case. */
  everyMs?: number;
  /** However much happens, not again before so long. */
  leastMs?: number;
  /** Once something is known, only the news are asked for, here, and laid upon it. */
  news?: { path: (known: T) => string; upon: (known: T, found: T) => T };
}

export function useResource<T>(path: string | null, wanted: Wanted<T> = {}): Resource<T> {
  const [data, setData] = useState<T>();
  const [problem, setProblem] = useState<Problem | null>(null);
  const state = useRef({
    path,
    wanted,
    known: undefined as T | undefined,
    timer: 0,
    fetchedAt: 0,
    busy: false,
    stale: false,
    controller: new AbortController(),
  });
  const here = state.current;
  here.wanted = wanted;

  const fetchNow = useCallback(async () => {
    window.clearTimeout(here.timer);
    here.timer = 0;
    if (here.path === null) return;
    if (here.busy) {
      here.stale = true;
      return;
    }
    const asked = here.path;
    here.busy = true;
    try {
      const { news } = here.wanted;
      const known = here.known;
      const more = news && known !== undefined;
      const found = await ask<T>(more ? news.path(known) : asked, { signal: here.controller.signal });
      if (asked === here.path) {
        here.known = more ? news.upon(known, found) : found;
        setData(() => here.known);
        setProblem(null);
      }
    } catch (error) {
      if (!(error instanceof Problem)) return;
      if (error.status === 401) return expelled();
      if (asked === here.path) setProblem(error);
      if (error.status === 0 || error.status >= 500) here.timer = window.setTimeout(fetchNow, AFTER_FAILURE_MS);
    } finally {
      here.busy = false;
      here.fetchedAt = performance.now();
      if (here.stale || asked !== here.path) {
        here.stale = false;
        later();
      }
    }
  }, []);

  const later = useCallback(() => {
    if (here.timer || document.hidden) {
      here.stale ||= document.hidden;
      return;
    }
    const wait = Math.max(0, here.fetchedAt + (here.wanted.leastMs ?? AGAIN_MS) - performance.now());
    here.timer = window.setTimeout(fetchNow, wait);
  }, []);

  useEffect(() => {
    here.path = path;
    here.controller = new AbortController();
    setProblem(null);
    setData(undefined);
    here.known = undefined;
    void fetchNow();
    return () => {
      here.controller.abort();
      window.clearTimeout(here.timer);
      here.timer = 0;
    };
  }, [path]);

  useEffect(() => {
    const seen = () => {
      if (!document.hidden && here.stale) {
        here.stale = false;
        later();
      }
    };
    document.addEventListener("visibilitychange", seen);
    const beat = wanted.everyMs ? window.setInterval(later, wanted.everyMs) : 0;
    return () => {
      document.removeEventListener("visibilitychange", seen);
      window.clearInterval(beat);
    };
  }, [wanted.everyMs]);

  useLines((lines) => {
    if (lines.length === 0 || (wanted.concerns && lines.some(wanted.concerns))) later();
  });

  return { data, problem, refresh: later };
}
