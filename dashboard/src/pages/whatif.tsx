// What would happen: a job that is not submitted, other machines, another order. Nothing real is touched.

import { useState } from "preact/hooks";
import { ask, Problem } from "../api";
import { duration } from "../format";
import { Trouble } from "../parts/notes";
import { link, place } from "../router";

interface Expected {
  words?: string;
  summary?: string;
}

interface Moved {
  count: number;
  jobs: { id: string; name?: string; by_s: number | null; then: string | null }[];
}

interface Answer {
  now: Expected | null;
  then: Expected | null;
  earlier: Moved;
  later: Moved;
  compared: number;
}

const text = (form: FormData, name: string) => String(form.get(name) ?? "").trim();
const names = (form: FormData, name: string) => text(form, name).split(/[\s,]+/).filter(Boolean);

function question(form: FormData): unknown {
  const asked: Record<string, unknown> = { remove_workers: names(form, "without"), drain: names(form, "drain") };
  const job = text(form, "job");
  const needs = {
    gpu_count: Number(text(form, "gpus") || 0),
    min_cpu_cores: Number(text(form, "cores") || 0),
    min_memory_gb: Number(text(form, "memory") || 0),
    ...(text(form, "type") ? { gpu_type: text(form, "type") } : {}),
  };
  if (job) asked["job_id"] = job;
  else if (form.get("new")) asked["spec"] = { command: ["true"], ...needs };
  if (text(form, "priority")) asked["priority"] = Number(text(form, "priority"));
  if (text(form, "like")) asked["add_workers"] = [{ like: text(form, "like"), count: Number(text(form, "count") || 1) }];
  return asked;
}

export function WhatIf() {
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const job = place.value.query.get("job") ?? "";

  async function submit(event: SubmitEvent) {
    event.preventDefault();
    setBusy(true);
    try {
      const body = question(new FormData(event.currentTarget as HTMLFormElement));
      setAnswer(await ask<Answer>("/v1/whatif", { method: "POST", body }));
      setProblem(null);
    } catch (error) {
      setProblem(error as Problem);
    } finally {
      setBusy(false);
    }
  }

  return (
    <>
      <h1>What if</h1>
      <form class="columns" onSubmit={submit}>
        <fieldset class="card">
          <legend>a job</legend>
          <p class="filters">
            <label>
              one that waits: <input name="job" placeholder="id" defaultValue={job} />
            </label>
            <label>
              with priority <input name="priority" type="number" size={6} />
            </label>
          </p>
          <p>
            <label>
              <input type="checkbox" name="new" defaultChecked={!job} /> or one that is not submitted, which needs
            </label>
          </p>
          <p class="filters">
            <label>
              GPUs <input name="gpus" type="number" min={0} max={1024} size={4} defaultValue="1" />
            </label>
            <label>
              of type <input name="type" size={10} placeholder="any" />
            </label>
            <label>
              cores <input name="cores" type="number" min={0} step="any" size={4} defaultValue="1" />
            </label>
            <label>
              memory <input name="memory" type="number" min={0} step="any" size={5} defaultValue="0" /> GiB
            </label>
          </p>
        </fieldset>
        <fieldset class="card">
          <legend>the machines</legend>
          <p class="filters">
            <label>
              add <input name="count" type="number" min={1} max={1000} size={4} defaultValue="1" />
            </label>
            <label>
              like <input name="like" placeholder="a machine's name" />
            </label>
          </p>
          <p>
            <label>
              without <input name="without" placeholder="names" />
            </label>
          </p>
          <p>
            <label>
              drained <input name="drain" placeholder="names" />
            </label>
          </p>
        </fieldset>
        <div>
          <button class="main" disabled={busy}>
            {busy ? "Looking ahead…" : "What would happen?"}
          </button>
        </div>
      </form>
      <Trouble problem={problem} />
      {answer && <Outcome answer={answer} />}
    </>
  );
}

function Outcome({ answer }: { answer: Answer }) {
  return (
    <section class="card" aria-live="polite">
      <h2>What would happen</h2>
      <dl>
        {answer.now && (
          <>
            <dt>as it is</dt>
            <dd>begins {answer.now.words}</dd>
          </>
        )}
        {answer.then && (
          <>
            <dt>then</dt>
            <dd>
              begins {answer.then.words} <span class="dim">{answer.then.summary}</span>
            </dd>
          </>
        )}
        {(["earlier", "later"] as const).map((when) => (
          <>
            <dt>others {when}</dt>
            <dd>
              {answer[when].count === 0 && `no other job of the ${answer.compared} that wait`}
              {answer[when].jobs.map((job) => (
                <div key={job.id}>
                  <a href={link("job", job.id)}>{job.name || job.id}</a> {" "}
                  {job.by_s !== null
                    ? `by ${duration(Math.abs(job.by_s))}`
                    : job.then
                      ? "which would never begin now"
                      : "which would never begin"}
                </div>
              ))}
              {answer[when].count > answer[when].jobs.length && (
                <div class="dim">and {answer[when].count - answer[when].jobs.length} more</div>
              )}
            </dd>
          </>
        ))}
      </dl>
    </section>
  );
}
