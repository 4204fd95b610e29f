// A log as it grows: coloured, searchable, bounded in memory; it stays at the end while the reader does.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { open, Problem } from "../api";
import { count } from "../format";
import { connected } from "../live";
import { runsOf, type Run } from "./ansi";
import { LastLines, type Line as Kept } from "./lines";
import { Trouble } from "./notes";

const FIRST_BYTES = 512 * 1024;
const PAINT_MS = 100;
const AGAIN_MS = 1000;
const AGAIN_AT_LAST_MS = 15_000;

export function LogView({ path, live }: { path: string; live: boolean }) {
  const { lines, dropped, problem } = useLog(`${path}?tail=${FIRST_BYTES}${live ? "&follow=true" : ""}`, live);
  const [sought, setSought] = useState("");
  const [following, setFollowing] = useState(true);
  const box = useRef<HTMLPreElement>(null);
  const painted = useMemo(() => paint(lines), [lines]);
  const shown = sought ? painted.filter((line) => line.text.toLowerCase().includes(sought.toLowerCase())) : painted;

  useLayoutEffect(() => {
    if (following && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown.length, lines, following]);

  function scrolled() {
    const here = box.current;
    if (here) setFollowing(here.scrollHeight - here.scrollTop - here.clientHeight < 40);
  }

  return (
    <section class="card">
      <div class="head">
        <h2>Log</h2>
        <input
          type="search"
          aria-label="Find in the log"
          placeholder="find  ( / )"
          value={sought}
          onInput={(event) => setSought(event.currentTarget.value)}
        />
        {sought && <span class="dim">{count(shown.length, "line")}</span>}
        <div class="actions">
          {!following && (
            <button type="button" onClick={() => setFollowing(true)}>
              To the end
            </button>
          )}
          <a href={path} download>
            Whole log
          </a>
        </div>
      </div>
      <Trouble problem={problem} />
      {dropped > 0 && <p class="dim">{count(dropped, "earlier line")} not shown here.</p>}
      <pre class="log" ref={box} onScroll={scrolled} tabIndex={0} aria-label="Log">
        {shown.length === 0 && <span class="a-dim">{sought ? "Nothing found." : live ? "Nothing was printed yet." : "Nothing was printed."}</span>}
        {shown.map((line) => (
          <Line key={line.number} runs={line.runs} sought={sought} />
        ))}
      </pre>
    </section>
  );
}

function Line({ runs, sought }: { runs: Run[]; sought: string }) {
  return (
    <>
      {runs.map((run, index) => (
        <span key={index} class={run.look}>
          {sought ? marked(run.text, sought) : run.text}
        </span>
      ))}
      {"\n"}
    </>
  );
}

function marked(text: string, sought: string) {
  const at = text.toLowerCase().indexOf(sought.toLowerCase());
  if (at < 0) return text;
  return (
    <>
      {text.slice(0, at)}
      <mark>{text.slice(at, at + sought.length)}</mark>
      {text.slice(at + sought.length)}
    </>
  );
}

function paint(lines: Kept[]): { number: number; text: string; runs: Run[] }[] {
  const looks = new Set<string>();
  return lines.map((line) => {
    const runs = runsOf(line.text, looks);
    return { number: line.number, runs, text: runs.map((run) => run.text).join("") };
  });
}

interface Shown {
  lines: Kept[];
  dropped: number;
}

/** The log's last lines, and what comes, painted a few times a second however fast it comes. A live one is read while the
 * page is looked at, as the hub's events are, and anew whenever it breaks off or ends: so it goes on after a hub was
 * restarted. */
function useLog(url: string, live: boolean): Shown & { problem: Problem | null } {
  const [shown, setShown] = useState<Shown>({ lines: [], dropped: 0 });
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    let reading = new AbortController();

    async function readOnce(signal: AbortSignal): Promise<void> {
      const response = await open(url, { signal });
      setProblem(null);
      const found = new LastLines();
      let timer = 0;
      const show = () => {
        timer = 0;
        setShown({ lines: found.shown(), dropped: found.dropped });
      };
      const showSoon = () => (timer ||= window.setTimeout(show, PAINT_MS));
      signal.addEventListener("abort", () => window.clearTimeout(timer));
      showSoon();
      const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
        found.take(part.value);
        showSoon();
      }
    }

    async function read(signal: AbortSignal): Promise<void> {
      let wait = AGAIN_MS;
      while (!signal.aborted) {
        const began = performance.now();
        try {
          await readOnce(signal);
          if (!live) return;
        } catch (error) {
          if (signal.aborted) return;
          const told = error instanceof Problem ? error : new Problem(0, "The log broke off. It goes on once the hub answers.");
          setProblem(told);
          if (!live && told.status >= 400 && told.status < 500) return;
        }
        if (performance.now() - began > AGAIN_AT_LAST_MS) wait = AGAIN_MS;
        await untilHeardAgain(wait, signal);
        wait = Math.min(2 * wait, AGAIN_AT_LAST_MS);
      }
    }

    function seen(): void {
      reading.abort();
      if (live && document.hidden) return;
      reading = new AbortController();
      void read(reading.signal);
    }

    seen();
    if (live) document.addEventListener("visibilitychange", seen);
    return () => {
      document.removeEventListener("visibilitychange", seen);
      reading.abort();
    };
  }, [url]);
  return { ...shown, problem };
}

/** Or until so long has passed. */
function untilHeardAgain(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    let was = connected.peek();
    const forget = connected.subscribe((is) => {
      if (is && !was) over();
      was = is;
    });
    const timer = window.setTimeout(over, ms);
    signal.addEventListener("abort", over);
    function over(): void {
      window.clearTimeout(timer);
      signal.removeEventListener("abort", over);
      forget();
      resolve();
    }
  });
}
