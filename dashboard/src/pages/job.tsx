// One job: where it stands and why, what was tried, what it prints, and what may be done about it.

import { ask, part } from "../api";
import { clock, commandOf, count } from "../format";
import { useResource } from "../live";
import { Artifacts } from "../parts/artifacts";
import { ConfirmButton } from "../parts/confirm";
import { LogView } from "../parts/log";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { State } from "../parts/state";
import { Tasks } from "../parts/tasks";
import { Ago, Took } from "../parts/when";
import { link, place } from "../router";
import { mayAct } from "../session";
import { CurvesCards } from "./curves";
import { LIVE, type Attempt, type FeedLine, type Job, type Why } from "../shapes";

const NEWEST = 200;

export function JobPage() {
  const id = place.value.id;
  const path = `/v1/jobs/${part(id)}`;
  const jobId = id.split(".", 1)[0];
  const concerns = (line: FeedLine) => line.subject === jobId && (id === jobId || !line.task || line.task === id);
  const { data: job, problem, refresh } = useResource<Job>(path, { concerns });
  if (!job) {
    if (problem?.status === 404) {
      return (
        <Empty title={`There is no job ${id}`}>
          <a href={link("jobs")}>Show all jobs</a>
        </Empty>
      );
    }
    return problem ? <Trouble problem={problem} /> : <Loading />;
  }
  return (
    <>
      <div class="head">
        <h1>{job.name || <span class="mono">{job.id}</span>}</h1>
        <State of={job.state} />
        {job.health && <span class="dim">health: {job.health}</span>}
        {mayAct() && <Actions job={job} refresh={refresh} />}
      </div>
      <Trouble problem={problem} />
      {job.reason && <div class={`note ${job.state === "failed" ? "bad" : ""}`}>{job.reason}</div>}
      <div class="columns">
        <Facts job={job} />
        <WhyCard job={job} path={path} concerns={concerns} />
      </div>
      {job.counts && <Counts counts={job.counts} />}
      {job.attempts && job.attempts.length > 0 && <Attempts attempts={job.attempts} />}
      {job.counts ? (
        <Tasks path={path} concerns={concerns} />
      ) : (
        <>
          <CurvesCards job={job} path={path} concerns={concerns} />
          <LogView path={`${path}/logs`} live={LIVE.includes(job.state)} key={job.attempt ?? ""} />
        </>
      )}
      <Artifacts job={job.id} concerns={concerns} />
      <History path={`${path}/events`} concerns={concerns} />
    </>
  );
}

function Actions({ job, refresh }: { job: Job; refresh: () => void }) {
  const act = (verb: string) => async () => {
    await ask(`/v1/jobs/${part(job.id)}/${verb}`, { method: "POST" });
    refresh();
  };
  return (
    <div class="actions">
      <ConfirmButton
        label="Cancel"
        question="End this job? What runs is told to stop, and killed after its grace."
        act={act("cancel")}
        disabled={!LIVE.includes(job.state)}
      />
      <a class="button" href={link("submit", "", { from: job.id.split(".", 1)[0] ?? "" })}>
        Clone
      </a>
      <ConfirmButton label="Requeue" question="Run this job again from the start?" act={act("requeue")} />
    </div>
  );
}

function Facts({ job }: { job: Job }) {
  const facts: [name: string, value: string | preact.JSX.Element | null][] = [
    ["id", <span class="mono">{job.id}</span>],
    ["command", commandOf(job.spec) ? <code>{commandOf(job.spec)}</code> : null],
    ["user", job.user_id],
    ["machine", job.worker && <a href={link("machine", job.worker)}>{job.worker}</a>],
    [
      "submitted",
      <>
        {clock(job.submitted_at)} (<Ago at={job.submitted_at} />)
      </>,
    ],
    ["started", job.started_at && clock(job.started_at)],
    ["took", job.started_at && <Took from={job.started_at} to={job.finished_at} />],
    ["exit code", job.exit_code === null ? null : String(job.exit_code)],
    ...Object.entries(job.metrics ?? {}).map(([name, value]): [string, string] => [name, String(value)]),
  ];
  return (
    <section class="card">
      <h2>Facts</h2>
      <dl>
        {facts
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <>
              <dt key={name}>{name}</dt>
              <dd>{value}</dd>
            </>
          ))}
      </dl>
      <details>
        <summary class="dim">The whole spec</summary>
        <pre class="scroll">{JSON.stringify(job.spec, null, 2)}</pre>
      </details>
    </section>
  );
}

function WhyCard({ job, path, concerns }: { job: Job; path: string; concerns: (line: FeedLine) => boolean }) {
  const { data: why, problem } = useResource<Why>(`${path}/why`, {
    concerns,
    everyMs: job.state === "pending" ? 10_000 : undefined,
  });
  return (
    <section class="card">
      <h2>Why</h2>
      <Trouble problem={problem} />
      {why && (
        <>
          <p>{why.summary}</p>
          {why.blockers?.length > 0 && (
            <ul>
              {why.blockers.map((blocker) => (
                <li key={blocker.axis}>
                  {blocker.reason} <span class="dim">({count(blocker.workers.length, "machine")})</span>
                </li>
              ))}
            </ul>
          )}
          {why.change && (
            <p>
              <strong>What would start it: </strong>
              {why.change}
            </p>
          )}
          {why.estimate && (
            <p class="dim">
              {why.state === "pending" && "Begins "}
              {typeof why.estimate === "string" ? why.estimate : (why.estimate.summary ?? "")}
            </p>
          )}
        </>
      )}
    </section>
  );
}

function Counts({ counts }: { counts: NonNullable<Job["counts"]> }) {
  return (
    <section class="card filters">
      {Object.entries(counts).map(([state, count]) => (
        <span key={state}>
          <State of={state} /> {count}
        </span>
      ))}
    </section>
  );
}

function Attempts({ attempts }: { attempts: Attempt[] }) {
  return (
    <Scroll label="Attempts">
      <h2>Attempts</h2>
      <table>
        <thead>
          <tr>
            <th>machine</th>
            <th>state</th>
            <th>started</th>
            <th>took</th>
            <th class="wide">peak memory</th>
            <th>reason</th>
          </tr>
        </thead>
        <tbody>
          {attempts.map((attempt) => (
            <tr key={attempt.attempt} title={attempt.why}>
              <td>
                <a href={link("machine", attempt.worker)}>{attempt.worker}</a>
                {attempt.devices.length > 0 && <span class="dim"> GPU {attempt.devices.join(", ")}</span>}
              </td>
              <td>
                <State of={attempt.state} />
              </td>
              <td>{clock(attempt.started_at)}</td>
              <td>
                <Took from={attempt.started_at} to={attempt.finished_at} />
              </td>
              <td class="wide">{attempt.peak_memory_mib ? `${attempt.peak_memory_mib} MiB` : ""}</td>
              <td class="reason">{attempt.reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function History({ path, concerns }: { path: string; concerns: (line: FeedLine) => boolean }) {
  const { data, problem } = useResource<{ events: FeedLine[]; older: boolean }>(`${path}?newest=${NEWEST}`, { concerns });
  return (
    <Scroll label="What happened">
      <h2>What happened</h2>
      <Trouble problem={problem} />
      {data?.older && <p class="dim">The last {NEWEST}; older ones are left out here.</p>}
      <table>
        <tbody>
          {data?.events.map((line) => (
            <tr key={line.seq}>
              <td class="dim">{clock(line.at)}</td>
              <td>{line.state && <State of={line.state} />}</td>
              <td>{line.task ?? line.worker}</td>
              <td class="reason">{line.reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
