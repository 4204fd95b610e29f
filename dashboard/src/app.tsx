// The frame: who is here, where one can go, and the page that stands there.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem } from "./api";
import icon from "./icon.svg";
import { connected, follow } from "./live";
import { Audit } from "./pages/audit";
import { Fleet } from "./pages/fleet";
import { JobPage } from "./pages/job";
import { Jobs } from "./pages/jobs";
import { Login } from "./pages/login";
import { MachinePage } from "./pages/machine";
import { Models } from "./pages/models";
import { Queue } from "./pages/queue";
import { Submit } from "./pages/submit";
import { TimelinePage } from "./pages/timeline";
import { Tokens } from "./pages/tokens";
import { Training } from "./pages/training";
import { WhatIf } from "./pages/whatif";
import { Empty, Loading, Trouble } from "./parts/notes";
import { go, link, place } from "./router";
import { isOperator, logOut, recall, session } from "./session";

interface Page {
  name: string;
  title: string;
  shows: ComponentType;
  key?: string;
  forOperators?: boolean;
}

const PAGES: Page[] = [
  { name: "fleet", title: "Fleet", shows: Fleet, key: "f" },
  { name: "timeline", title: "Timeline", shows: TimelinePage, key: "l" },
  { name: "queue", title: "Queue", shows: Queue, key: "q" },
  { name: "jobs", title: "Jobs", shows: Jobs, key: "j" },
  { name: "training", title: "Training", shows: Training, key: "r" },
  { name: "models", title: "Models", shows: Models, key: "m" },
  { name: "whatif", title: "What if", shows: WhatIf, key: "w" },
  { name: "audit", title: "Audit", shows: Audit, key: "a", forOperators: true },
  { name: "tokens", title: "Tokens", shows: Tokens, key: "t", forOperators: true },
];
const UNLISTED: Page[] = [
  { name: "job", title: "Job", shows: JobPage },
  { name: "machine", title: "Machine", shows: MachinePage },
  { name: "submit", title: "New job", shows: Submit },
];

const AGAIN_MS = 3000;

export function App() {
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    let timer = 0;
    const ask = () =>
      void recall().then(
        () => setProblem(null),
        (error: Problem) => {
          setProblem(error);
          timer = window.setTimeout(ask, AGAIN_MS);
        },
      );
    ask();
    return () => window.clearTimeout(timer);
  }, []);
  if (problem) return <Trouble problem={problem} />;
  if (session.value === undefined) return <Loading />;
  return session.value ? <Frame /> : <Login />;
}

function Frame() {
  useEffect(follow, []);
  useEffect(() => {
    addEventListener("keydown", byKey);
    return () => removeEventListener("keydown", byKey);
  }, []);
  const page = [...PAGES, ...UNLISTED].find((one) => one.name === place.value.page);
  const Shown = page?.shows;
  useEffect(() => {
    document.title = page ? `${page.title} · Ostler` : "Ostler";
    // On a narrow screen the list of pages is wider than it.
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [page]);
  return (
    <>
      <header class="top">
        <a class="brand" href={link("fleet")}>
          <img src={icon} alt="" />
          Ostler
        </a>
        <nav aria-label="Pages">
          {PAGES.filter((one) => !one.forOperators || isOperator()).map((one) => (
            <a
              key={one.name}
              href={link(one.name)}
              aria-current={one.name === page?.name ? "page" : undefined}
              title={one.key && `Key: ${one.key}`}
            >
              {one.title}
            </a>
          ))}
        </nav>
        <span role="status" class={`state ${connected.value ? "good" : "waiting"}`}>
          {connected.value ? "● live" : "○ reconnecting…"}
        </span>
        <span class="dim wide">
          {session.value?.user} ({session.value?.role})
        </span>
        <button type="button" onClick={() => void logOut()}>
          Log out
        </button>
      </header>
      <main>
        {Shown ? (
          <Shown key={`${place.value.page}/${place.value.id}`} />
        ) : (
          <Empty title="There is no such page">
            <a href={link("fleet")}>Back to the fleet</a>
          </Empty>
        )}
      </main>
    </>
  );
}

function byKey(event: KeyboardEvent): void {
  const typing = event.target instanceof HTMLElement && event.target.closest("input, textarea, select, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector<HTMLInputElement>("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
    return;
  }
  const page = PAGES.find((one) => one.key === event.key && (!one.forOperators || isOperator()));
  if (page) go(page.name);
}
