// The manifest at a glance: how far it is, each model in each mode and where, what failed, and the sweeps.

import { useState } from "preact/hooks";
import { useResource } from "../live";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { State } from "../parts/state";
import { Ago } from "../parts/when";
import { usePaged } from "../paging";
import { link, place } from "../router";
import type { Job, Status } from "../shapes";
import { SweepPage } from "./sweep";

interface Manifest {
  file: string;
  applied_at: string;
  by: string;
  counts: Record<string, number>;
  failed: { id: string; name: string; reason: string; worker: string | null }[];
}

export interface SweepSummary {
  name: string;
  metric: string;
  goal: string;
  total: number;
  counts: Record<string, number>;
  best: { job_id: string; name: string; value: number; hyper: Record<string, unknown> } | null;
}

export const concerns = (line: { user?: string; kind: string }) => line.user === "manifest" || line.kind === "manifest";

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
          {data.manifest.file}, applied <Ago at={data.manifest.applied_at} /> by {data.manifest.by}
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

/** What the columns are; what is no column is told apart by the row, or within the cell. */
type Along = "mode" | "machine";

function Matrix() {
  const [along, setAlong] = useState<Along>("mode");
  const path = "/v1/jobs?limit=200&user=manifest";
  const listing = usePaged(path, (page: { jobs: Job[]; next: string | null }) => page.jobs, (job) => job.id, {
    concerns,
    leastMs: 2000,
  });
  if (!listing.items) return <Trouble problem={listing.problem} />;
  const { rows, columns } = arranged(listing.items, along);
  return (
    <Scroll label="Models and modes">
      <div class="head">
        <h2>Models and modes</h2>
        <label>
          across{" "}
          <select value={along} onChange={(event) => setAlong(event.currentTarget.value as Along)}>
            <option value="mode">modes</option>
            <option value="machine">machines</option>
          </select>
        </label>
      </div>
      <Trouble problem={listing.problem} />
      <table>
        <thead>
          <tr>
            <th>{along === "mode" ? "model" : "model, mode"}</th>
            {columns.map((column) => (
              <th key={column}>{column || (along === "mode" ? "–" : "none yet")}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, row]) => (
            <tr key={name}>
              <td>{name || "–"}</td>
              {columns.map((column) => (
                <td key={column}>
                  <Cell jobs={row.get(column) ?? []} withMachine={along === "mode"} />
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

type Row = Map<string, Job[]>;

function arranged(jobs: Job[], along: Along): { rows: [name: string, row: Row][]; columns: string[] } {
  const rows = new Map<string, Row>();
  const columns = new Set<string>();
  for (const job of jobs) {
    const { model = "", mode = "" } = (job.spec["training"] ?? {}) as Trained;
    const [name, column] = along === "mode" ? [model, mode] : [[model, mode].filter(Boolean).join(", "), job.worker ?? ""];
    columns.add(column);
    const row = rows.get(name) ?? new Map<string, Job[]>();
    rows.set(name, row.set(column, [...(row.get(column) ?? []), job]));
  }
  return { rows: [...rows].sort(([a], [b]) => (a < b ? -1 : 1)), columns: [...columns].sort() };
}

const SINGLY = 4;

function Cell({ jobs, withMachine }: { jobs: Job[]; withMachine: boolean }) {
  if (jobs.length <= SINGLY) {
    return (
      <div class="cells">
        {jobs.map((job) => (
          <a key={job.id} href={link("job", job.id)} title={job.reason || job.name}>
            <State of={job.state} /> {withMachine && <span class="dim">{job.worker}</span>}
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

export function varied(hyper: Record<string, unknown>): string {
  return Object.entries(hyper)
    .map(([name, value]) => `${name}=${String(value)}`)
    .join(", ");
}
