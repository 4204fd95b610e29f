// The manifest at a glance: how far it is, each model in each mode and where, what failed, and the sweeps.

import { useState } from "preact/hooks";
import { part } from "../api";
import { ago } from "../format";
import { useResource } from "../live";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Parallel, Scatter, type Point } from "../parts/plots";
import { Scroll } from "../parts/scroll";
import { State } from "../parts/state";
import { usePaged } from "../paging";
import { go, link, place } from "../router";
import type { Job, Status } from "../shapes";

interface Manifest {
  file: string;
  applied_at: string;
  by: string;
  counts: Record<string, number>;
  failed: { id: string; name: string; reason: string; worker: string | null }[];
}

interface SweepSummary {
  name: string;
  metric: string;
  goal: string;
  total: number;
  counts: Record<string, number>;
  best: { job_id: string; name: string; value: number; hyper: Record<string, unknown> } | null;
}

interface Sweep extends SweepSummary {
  jobs: Point[];
}

const concerns = (line: { user?: string; kind: string }) => line.user === "manifest" || line.kind === "manifest";

export function Training() {
  const chosen = place.value.id;
  const { data, problem } = useResource<Status & { manifest: Manifest | null; sweeps: SweepSummary[] }>("/v1/status", {
    concerns,
    everyMs: 30_000,
  });
  if (!data) return problem ? <Trouble problem={problem} /> : <Loading />;
  if (!data.manifest) {
    return (
      <>
        <h1>Training</h1>
        <Empty title="No manifest has been applied">
          <p>
            Write hosts and jobs into one TOML file, then <code>ostler apply FILE</code>; docs/manifest.md shows how.
          </p>
        </Empty>
      </>
    );
  }
  if (chosen) return <SweepPage name={chosen} />;
  return (
    <>
      <div class="head">
        <h1>Training</h1>
        <span class="dim">
          {data.manifest.file}, applied {ago(data.manifest.applied_at)} by {data.manifest.by}
        </span>
      </div>
      <Trouble problem={problem} />
      <Counts counts={data.manifest.counts} />
      <Matrix />
      {data.sweeps.length > 0 && <Sweeps sweeps={data.sweeps} />}
      {data.manifest.failed.length > 0 && <Failed failed={data.manifest.failed} />}
    </>
  );
}

function Counts({ counts }: { counts: Record<string, number> }) {
  return (
    <div class="tiles">
      {Object.entries(counts).map(([status, count]) => (
        <div class="card tile" key={status}>
          <div class="dim">{status}</div>
          <div class="value">{count}</div>
        </div>
      ))}
    </div>
  );
}

interface Trained {
  model?: string;
  mode?: string;
}

function Matrix() {
  const path = "/v1/jobs?limit=200&user=manifest";
  const listing = usePaged(path, (page: { jobs: Job[]; next: string | null }) => page.jobs, (job) => job.id, { concerns });
  if (!listing.items) return <Trouble problem={listing.problem} />;
  const cells = new Map<string, Map<string, Job[]>>();
  const modes = new Set<string>();
  for (const job of listing.items) {
    const { model = "", mode = "" } = (job.spec["training"] ?? {}) as Trained;
    modes.add(mode);
    const row = cells.get(model) ?? new Map<string, Job[]>();
    cells.set(model, row.set(mode, [...(row.get(mode) ?? []), job]));
  }
  const columns = [...modes].sort();
  return (
    <Scroll label="Models and modes">
      <h2>Models and modes</h2>
      <Trouble problem={listing.problem} />
      <table>
        <thead>
          <tr>
            <th>model</th>
            {columns.map((mode) => (
              <th key={mode}>{mode || "–"}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {[...cells].map(([model, row]) => (
            <tr key={model}>
              <td>{model || "–"}</td>
              {columns.map((mode) => (
                <td key={mode}>
                  <Cell jobs={row.get(mode) ?? []} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {listing.more && (
        <button type="button" disabled={listing.busy} onClick={listing.load}>
          Show older ones
        </button>
      )}
    </Scroll>
  );
}

const SINGLY = 4;

function Cell({ jobs }: { jobs: Job[] }) {
  if (jobs.length <= SINGLY) {
    return (
      <div class="cells">
        {jobs.map((job) => (
          <a key={job.id} href={link("job", job.id)} title={job.reason || job.name}>
            <State of={job.state} /> <span class="dim">{job.worker}</span>
          </a>
        ))}
      </div>
    );
  }
  const counts = new Map<string, number>();
  for (const job of jobs) counts.set(job.state, (counts.get(job.state) ?? 0) + 1);
  return (
    <div class="cells">
      {[...counts].map(([state, count]) => (
        <span key={state}>
          <State of={state} /> {count}
        </span>
      ))}
    </div>
  );
}

function Sweeps({ sweeps }: { sweeps: SweepSummary[] }) {
  return (
    <Scroll label="Sweeps">
      <h2>Sweeps</h2>
      <table>
        <thead>
          <tr>
            <th>sweep</th>
            <th>done</th>
            <th>metric</th>
            <th>best</th>
          </tr>
        </thead>
        <tbody>
          {sweeps.map((sweep) => (
            <tr key={sweep.name}>
              <td>
                <a href={link("training", sweep.name)}>{sweep.name}</a>
              </td>
              <td>
                {sweep.counts["completed"] ?? 0} of {sweep.total}
              </td>
              <td>
                {sweep.metric} <span class="dim">({sweep.goal})</span>
              </td>
              <td>
                {sweep.best && (
                  <a href={link("job", sweep.best.job_id)}>
                    {sweep.best.value} <span class="dim">{varied(sweep.best.hyper)}</span>
                  </a>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Failed({ failed }: { failed: Manifest["failed"] }) {
  return (
    <Scroll label="Failed">
      <h2>Failed</h2>
      <table>
        <tbody>
          {failed.map((job) => (
            <tr key={job.id}>
              <td>
                <a href={link("job", job.id)}>{job.name || job.id}</a>
              </td>
              <td>{job.worker}</td>
              <td>{job.reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function SweepPage({ name }: { name: string }) {
  const { data, problem } = useResource<Sweep>(`/v1/sweeps/${part(name)}`, { concerns });
  const [along, setAlong] = useState("");
  if (!data) return problem ? <Trouble problem={problem} /> : <Loading />;
  const axes = [...new Set(data.jobs.flatMap((point) => Object.keys(point.hyper)))];
  const axis = along || axes[0] || "";
  const shown = { points: data.jobs, metric: data.metric, best: data.best?.job_id };
  return (
    <>
      <div class="head">
        <h1>{data.name}</h1>
        <span class="dim">
          {data.metric} ({data.goal}), {data.counts["completed"] ?? 0} of {data.total} done
        </span>
        <div class="actions">
          <button type="button" onClick={() => go("training")}>
            All training
          </button>
        </div>
      </div>
      <Trouble problem={problem} />
      {data.best && (
        <p class="note">
          Best so far: <a href={link("job", data.best.job_id)}>{data.best.value}</a> with {varied(data.best.hyper)}
        </p>
      )}
      <div class="columns">
        <section class="card">
          <div class="head">
            <h2>{data.metric} by</h2>
            <select aria-label="Along" value={axis} onChange={(event) => setAlong(event.currentTarget.value)}>
              {axes.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </div>
          <Scatter {...shown} along={axis} />
        </section>
        <section class="card">
          <h2>Every run</h2>
          <Parallel {...shown} />
        </section>
      </div>
    </>
  );
}

function varied(hyper: Record<string, unknown>): string {
  return Object.entries(hyper)
    .map(([name, value]) => `${name}=${String(value)}`)
    .join(", ");
}
