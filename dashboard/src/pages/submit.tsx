// A new job, from nothing or from one that was: fields for what is changed most, and the whole spec as JSON beside them.
// Both are the same thing: what is changed in one is changed in the other.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, part, Problem, type Mistake } from "../api";
import { Loading, Trouble } from "../parts/notes";
import { go, link, place } from "../router";
import { mayAct } from "../session";
import type { Job } from "../shapes";

type Spec = Record<string, unknown>;

/** What is the old job's own: its id, whose it is, and the manifest's entry that it came from. */
const NOT_CLONED = ["id", "user_id", "training"];

interface Field {
  key: string;
  label: string;
  kind: "text" | "number" | "words";
  hint?: string;
}

const FIELDS: Field[] = [
  { key: "name", label: "Name", kind: "text" },
  { key: "command", label: "Command", kind: "words", hint: "one argument a line; one of several lines in quotes, as in JSON" },
  { key: "gpu_count", label: "GPUs", kind: "number" },
  { key: "gpu_type", label: "GPU type", kind: "text", hint: "any" },
  { key: "min_cpu_cores", label: "Cores", kind: "number" },
  { key: "min_memory_gb", label: "Memory, GiB", kind: "number" },
  { key: "priority", label: "Priority", kind: "number" },
  { key: "max_runtime_hours", label: "Longest run, hours", kind: "number", hint: "24" },
];

export function Submit() {
  const from = place.value.query.get("from") ?? "";
  return <Copy key={from} from={from} />;
}

function Copy({ from }: { from: string }) {
  const [spec, setSpec] = useState<Spec | null>(from ? null : { command: ["echo", "hello"] });
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    if (!from) return;
    ask<Job>(`/v1/jobs/${part(from)}`).then(
      (job) => setSpec(Object.fromEntries(Object.entries(job.spec).filter(([key]) => !NOT_CLONED.includes(key)))),
      (error: Problem) => setProblem(error),
    );
  }, [from]);
  if (!mayAct()) return <p class="note">Who only looks cannot submit; a token of role user can.</p>;
  if (!spec) return problem ? <Trouble problem={problem} /> : <Loading />;
  return <Form first={spec} from={from} />;
}

function Form({ first, from }: { first: Spec; from: string }) {
  const [spec, setSpec] = useState(first);
  const [text, setText] = useState(JSON.stringify(first, null, 2));
  const [unread, setUnread] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const wrong = useRef<HTMLFormElement>(null);

  function change(key: string, value: unknown) {
    const next = { ...spec };
    if (value === undefined) delete next[key];
    else next[key] = value;
    setSpec(next);
    setText(JSON.stringify(next, null, 2));
    setUnread("");
  }

  function rewrite(written: string) {
    setText(written);
    try {
      const found: unknown = JSON.parse(written);
      if (typeof found !== "object" || found === null || Array.isArray(found)) throw new SyntaxError("it is no object");
      setSpec(found as Spec);
      setUnread("");
    } catch (error) {
      setUnread(`This is not JSON yet: ${(error as Error).message}`);
    }
  }

  async function submit(event: SubmitEvent) {
    event.preventDefault();
    if (unread) return;
    setBusy(true);
    try {
      const made = await ask<{ id: string }>("/v1/jobs", { method: "POST", body: spec });
      go("job", made.id);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
      requestAnimationFrame(() => wrong.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
    } finally {
      setBusy(false);
    }
  }

  const shown = new Set(FIELDS.map((field) => field.key));
  const rest = problem && elsewhere(problem, shown);
  return (
    <form ref={wrong} onSubmit={submit} class="stack">
      <div class="head">
        <h1>{from ? "Clone with changes" : "New job"}</h1>
        {from && (
          <span class="dim">
            from <a href={link("job", from)}>{from}</a>
          </span>
        )}
      </div>
      <div class="columns">
        <fieldset class="card">
          <legend>what is changed most</legend>
          <div class="fields">
            {FIELDS.map((field) => (
              <Input key={field.key} field={field} value={spec[field.key]} wrong={mistakesOf(problem, field.key)} change={change} />
            ))}
          </div>
        </fieldset>
        <fieldset class="card">
          <legend>the whole spec</legend>
          <div class="field">
            <textarea
              rows={18}
              aria-label="The whole spec"
              spellcheck={false}
              value={text}
              aria-invalid={unread || rest ? "true" : undefined}
              aria-describedby="spec-wrong"
              onInput={(event) => rewrite(event.currentTarget.value)}
            />
            <span id="spec-wrong" class="wrong" role="status">
              {unread}
            </span>
          </div>
        </fieldset>
      </div>
      <Trouble problem={rest} />
      <div class="filters">
        <button class="main" disabled={busy || unread !== ""}>
          Submit
        </button>
        <a href={from ? link("job", from) : link("jobs")}>Leave it</a>
      </div>
    </form>
  );
}

/** `[0].gpu_count` and `gpu_count.x` are about the field gpu_count, too. */
const keyOf = (mistake: Mistake) => mistake.where.replace(/^\[\d+\]\.?/, "").split(/[.[]/, 1)[0] ?? "";

function mistakesOf(problem: Problem | null, key: string): string {
  return (problem?.mistakes ?? [])
    .filter((mistake) => keyOf(mistake) === key)
    .map((mistake) => mistake.what)
    .join("; ");
}

/** What no field of the form says. */
function elsewhere(problem: Problem, shown: Set<string>): Problem | null {
  const others = problem.mistakes.filter((mistake) => !shown.has(keyOf(mistake)));
  return problem.mistakes.length && !others.length ? null : new Problem(problem.status, problem.message, others);
}

interface Shown {
  field: Field;
  value: unknown;
  wrong: string;
  change: (key: string, value: unknown) => void;
}

function Input({ field, value, wrong, change }: Shown) {
  // What is half typed, such as `0.`, stays as it was typed for as long as it means what stands in the spec.
  const [typed, setTyped] = useState("");
  const text = JSON.stringify(read(field, typed)) === JSON.stringify(value) ? typed : written(field, value);
  function type(entered: string) {
    setTyped(entered);
    change(field.key, read(field, entered));
  }
  const id = `field-${field.key}`;
  const common = { id, placeholder: field.hint, "aria-invalid": wrong ? ("true" as const) : undefined, "aria-describedby": `${id}-wrong` };
  return (
    <div class={`field ${field.kind === "words" ? "whole" : ""}`}>
      <label for={id}>{field.label}</label>
      {field.kind === "words" ? (
        <textarea
          {...common}
          rows={4}
          spellcheck={false}
          value={text}
          onInput={(event) => type(event.currentTarget.value)}
        />
      ) : (
        <input
          {...common}
          inputMode={field.kind === "number" ? "decimal" : "text"}
          value={text}
          onInput={(event) => type(event.currentTarget.value)}
        />
      )}
      <span id={`${id}-wrong`} class="wrong">
        {wrong}
      </span>
    </div>
  );
}

/** An argument of several lines stands in quotes, as in JSON. */
const lineOf = (word: unknown) => (/^"|\n/.test(String(word)) ? JSON.stringify(word) : String(word));

function wordOf(line: string): string {
  try {
    const read: unknown = line.startsWith('"') ? JSON.parse(line) : line;
    return typeof read === "string" ? read : line;
  } catch {
    return line;
  }
}

function read(field: Field, text: string): unknown {
  if (text === "") return undefined;
  if (field.kind === "words") return text.split("\n").map(wordOf);
  return field.kind === "number" && text.trim() && Number.isFinite(Number(text)) ? Number(text) : text;
}

function written(field: Field, value: unknown): string {
  if (field.kind === "words") return Array.isArray(value) ? value.map(lineOf).join("\n") : "";
  return value === undefined || value === null ? "" : String(value);
}
