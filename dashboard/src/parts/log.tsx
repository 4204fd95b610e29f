// A log as it grows: coloured, searchable, bounded in memory; it stays at the end while the reader does.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { open, Problem } from "../api";
import { count } from "../format";
import { afterReturns, runsOf, type Run } from "./ansi";
import { Trouble } from "./notes";

const KEPT_LINES = 5000;
const FIRST_BYTES = 512 * 1024;
const PAINT_MS = 100;

export function LogView({ path, live }: { path: string; live: boolean }) {
  const { lines, dropped, problem } = useLog(`${path}?tail=${FIRST_BYTES}${live ? "&follow=true" : ""}`);
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

interface Kept {
  number: number;
  text: string;
}

function paint(lines: Kept[]): { number: number; text: string; runs: Run[] }[] {
  const looks = new Set<string>();
  return lines.map((line) => {
    const runs = runsOf(line.text, looks);
    return { number: line.number, runs, text: runs.map((run) => run.text).join("") };
  });
}

/** The log's last lines, and what comes, painted a few times a second however fast it comes. */
function useLog(url: string): { lines: Kept[]; dropped: number; problem: Problem | null } {
  const [shown, setShown] = useState<{ lines: Kept[]; dropped: number }>({ lines: [], dropped: 0 });
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    const controller = new AbortController();
    const lines: Kept[] = [];
    let rest = "";
    let number = 0;
    let timer = 0;

    function show(): void {
      timer = 0;
      const tail = rest ? [{ number, text: afterReturns(rest) }] : [];
      setShown({ lines: [...lines, ...tail], dropped: number - lines.length });
    }

    function take(text: string): void {
      const pieces = (rest + text).split("\n");
      rest = pieces.pop() ?? "";
      for (const piece of pieces) lines.push({ number: number++, text: afterReturns(piece) });
      if (lines.length > KEPT_LINES) lines.splice(0, lines.length - KEPT_LINES);
      if (!timer) timer = window.setTimeout(show, PAINT_MS);
    }

    async function read(): Promise<void> {
      const response = await open(url, { signal: controller.signal });
      const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) take(part.value);
    }

    read().catch((error: unknown) => {
      if (controller.signal.aborted) return;
      setProblem(error instanceof Problem ? error : new Problem(0, "The log broke off. Open the page anew to go on."));
    });
    return () => {
      controller.abort();
      window.clearTimeout(timer);
    };
  }, [url]);
  return { ...shown, problem };
}
