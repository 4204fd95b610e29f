// Lists that are longer than a page: the first page is live, the others are as they were when they were asked for, or
// when the hub was heard again after a silence.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ask, part, Problem } from "./api";
import { useLines, useResource } from "./live";
import type { FeedLine } from "./shapes";

type Page = { next: string | null };

interface Paged<T> {
  items: T[] | undefined;
  /** Those on the page that is live. */
  first: T[] | undefined;
  problem: Problem | null;
  more: boolean;
  busy: boolean;
  load: () => Promise<void>;
}

/** `path` has a query already; `itemsOf` picks the list out of a page, `idOf` tells two items apart. */
export function usePaged<P extends Page, T>(
  path: string,
  itemsOf: (page: P) => T[],
  idOf: (item: T) => string | number,
  wanted: { concerns?: (line: FeedLine) => boolean; everyMs?: number; leastMs?: number } = {},
): Paged<T> {
  const first = useResource<P>(path, wanted);
  const [older, setOlder] = useState<T[]>([]);
  const [cursor, setCursor] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const before = useRef<T[]>([]);
  useEffect(() => {
    before.current = [];
    setOlder([]);
    setCursor(null);
    setProblem(null);
  }, [path]);
  useEffect(() => {
    const now = first.data ? itemsOf(first.data) : [];
    const was = before.current;
    before.current = now;
    setOlder((known) => behind(was, now, known, idOf));
  }, [first.data]);
  const begin = first.data?.next ?? null;
  const from = older.length ? cursor : begin;

  async function load() {
    setBusy(true);
    try {
      const page = await ask<P>(`${path}&cursor=${part(from ?? "")}`);
      setOlder((known) => [...known, ...itemsOf(page)]);
      setCursor(page.next);
      setProblem(null);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    } finally {
      setBusy(false);
    }
  }

  async function renew() {
    const found = new Map<string | number, T>();
    try {
      for (let next = begin; next !== null && found.size < older.length; ) {
        const page: P = await ask<P>(`${path}&cursor=${part(next)}`);
        for (const item of itemsOf(page)) found.set(idOf(item), item);
        next = page.next;
      }
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return; // as they were; the first page says what is wrong
    }
    setOlder((known) => known.map((item) => found.get(idOf(item)) ?? item));
  }
  useLines((lines) => {
    if (lines.length === 0 && older.length > 0) void renew();
  });

  const items = useMemo(() => first.data && once([...itemsOf(first.data), ...older], idOf), [first.data, older]);
  return { items, first: first.data && itemsOf(first.data), problem: first.problem ?? problem, more: from !== null, busy, load };
}

/** What stands behind the first page as it is now: what newer ones have moved off its end is on none that was asked for,
 * and where a whole page of them came, the older ones have to be asked for again. */
function behind<T>(was: T[], now: T[], older: T[], idOf: (item: T) => string | number): T[] {
  const last = now[now.length - 1];
  if (!older.length || last === undefined) return older;
  const isLast = (item: T) => idOf(item) === idOf(last);
  const at = was.findIndex(isLast);
  if (at < 0) return older.some(isLast) ? older : [];
  return at + 1 < was.length ? [...was.slice(at + 1), ...older] : older;
}

/** What has moved from the first page to the next meanwhile is in both. */
function once<T>(items: T[], idOf: (item: T) => string | number): T[] {
  const seen = new Set<string | number>();
  return items.filter((item) => !seen.has(idOf(item)) && seen.add(idOf(item)));
}
