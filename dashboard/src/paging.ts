// Lists that are longer than a page: the first page is live, the others are as they were when they were asked for.

import { useEffect, useState } from "preact/hooks";
import { ask, part, Problem } from "./api";
import { useResource } from "./live";
import type { FeedLine } from "./shapes";

type Page = { next: string | null };

interface Paged<T> {
  items: T[] | undefined;
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
  wanted: { concerns?: (line: FeedLine) => boolean; everyMs?: number } = {},
): Paged<T> {
  const first = useResource<P>(path, wanted);
  const [older, setOlder] = useState<T[]>([]);
  const [cursor, setCursor] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    setOlder([]);
    setCursor(null);
    setProblem(null);
  }, [path]);
  const from = older.length ? cursor : (first.data?.next ?? null);

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

  const items = first.data && once([...itemsOf(first.data), ...older], idOf);
  return { items, problem: first.problem ?? problem, more: from !== null, busy, load };
}

/** What has moved from the first page to the next meanwhile is in both. */
function once<T>(items: T[], idOf: (item: T) => string | number): T[] {
  const seen = new Set<string | number>();
  return items.filter((item) => !seen.has(idOf(item)) && seen.add(idOf(item)));
}
