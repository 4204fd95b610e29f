// One sweep: its runs as plots and as a table, the best first, by any number that they told.

import { useState } from "preact/hooks";
import { ask, part } from "../api";
import { useResource } from "../live";
import { ConfirmButton } from "../parts/confirm";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Parallel, Scatter, type Point } from "../parts/plots";
import { Scroll } from "../parts/scroll";
import { State } from "../parts/state";
import { go, link } from "../router";
import { isOperator } from "../session";
import { concerns, varied, type SweepSummary } from "./training";

interface Run extends Point {
  worker: string | null;
  reason: string;
  metrics: Record<string, number>;
}

interface Sweep extends SweepSummary {
  jobs: Run[];
}

const FEW = 20;

export function SweepPage({ name }: { name: string }) {
  const [metric, setMetric] = useState("");
  const path = `/v1/sweeps/${part(name)}`;
  const { data, problem, refresh } = useResource<Sweep>(`${path}${metric && `?metric=${part(metric)}`}`, { concerns, leastMs: 2000 });
  const [along, setAlong] = useState("");
  if (!data) {
    if (problem?.status === 404) {
      return (
        <Empty title={`There is no sweep ${name}`}>
          <a href={link("training")}>All training</a>
        </Empty>
      );
    }
    return problem ? <Trouble problem={problem} /> : <Loading />;
  }
  const axes = namesIn(data.jobs.map((run) => run.hyper));
  const axis = along || axes[0] || "";
  const shown = { points: data.jobs, metric: data.metric, best: data.best?.job_id };
  return (
    <>
      <Heading sweep={data} choose={setMetric} path={path} refresh={refresh} />
      <Trouble problem={problem} />
      {data.best && (
        <p class="note">
          Best so far: <a href={link("job", data.best.job_id)}>{data.best.value}</a> with {varied(data.best.hyper)}
        </p>
      )}
      <div class="columns">
        <section class="card">
          <div class="head">
            <h2>{data.metric || "metric"} by</h2>
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
      <Runs sweep={data} axes={axes} />
    </>
  );
}

const namesIn = (records: Record<string, unknown>[]) => [...new Set(records.flatMap((record) => Object.keys(record)))];

interface Head {
  sweep: Sweep;
  choose: (metric: string) => void;
  path: string;
  refresh: () => void;
}

function Heading({ sweep, choose, path, refresh }: Head) {
  const metrics = namesIn(sweep.jobs.map((run) => run.metrics));
  const act = (verb: string) => () => ask(`${path}/${verb}`, { method: "POST" }).then(refresh);
  return (
    <div class="head">
      <h1>{sweep.name}</h1>
      <label>
        by{" "}
        <select aria-label="Metric" value={sweep.metric} onChange={(event) => choose(event.currentTarget.value)}>
          {[...new Set([sweep.metric, ...metrics])].map((one) => (
            <option key={one} value={one}>
              {one || "none told yet"}
            </option>
          ))}
        </select>
      </label>
      <span class="dim">
        {sweep.goal === "min" ? "the least is best" : "the most is best"}, {sweep.counts["completed"] ?? 0} of {sweep.total} done
      </span>
      <div class="actions">
        {isOperator() && (
          <>
            <ConfirmButton label="Cancel" question={`End all runs of ${sweep.name} that have not ended?`} act={act("cancel")} />
            <ConfirmButton label="Requeue" question={`Run all ${sweep.total} runs of ${sweep.name} again?`} act={act("requeue")} />
          </>
        )}
        <button type="button" onClick={() => go("training")}>
          All training
        </button>
      </div>
    </div>
  );
}

function Runs({ sweep, axes }: { sweep: Sweep; axes: string[] }) {
  const [all, setAll] = useState(false);
  const sign = sweep.goal === "min" ? 1 : -1;
  const worth = (run: Run) => (run.value === null || run.status !== "completed" ? Infinity : sign * run.value);
  const inOrder = [...sweep.jobs].sort((a, b) => worth(a) - worth(b) || 0);
  return (
    <Scroll label="Runs">
      <h2>Best runs</h2>
      <table>
        <thead>
          <tr>
            <th>run</th>
            <th class="right">{sweep.metric || "metric"}</th>
            {axes.map((axis) => (
              <th key={axis} class="right">
                {axis}
              </th>
            ))}
            <th>status</th>
            <th class="wide">machine</th>
          </tr>
        </thead>
        <tbody>
          {(all ? inOrder : inOrder.slice(0, FEW)).map((run) => (
            <tr key={run.job_id}>
              <td class="name clip">
                <a href={link("job", run.job_id)}>{run.name || run.job_id}</a>
              </td>
              <td class="right">{run.value}</td>
              {axes.map((axis) => (
                <td key={axis} class="right">
                  {String(run.hyper[axis] ?? "")}
                </td>
              ))}
              <td title={run.reason}>
                <State of={run.status} />
              </td>
              <td class="wide">{run.worker && <a href={link("machine", run.worker)}>{run.worker}</a>}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {!all && inOrder.length > FEW && (
        <button type="button" onClick={() => setAll(true)}>
          Show all {inOrder.length}
        </button>
      )}
    </Scroll>
  );
}
