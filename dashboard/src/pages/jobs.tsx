// Jobs, newest first, a page at a time; the filters are part of the address, so that a view can be sent to somebody.

import { useEffect, useState } from "preact/hooks";
import { part } from "../api";
import { commandOf } from "../format";
import { useLines } from "../live";
import { usePaged } from "../paging";
import { DraftInput } from "../parts/draft";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { State } from "../parts/state";
import { Ago, Took } from "../parts/when";
import { go, link, place } from "../router";
import { mayAct } from "../session";
import { LIVE, type FeedLine, type Job, type JobState } from "../shapes";

const STATES: JobState[] = [
  "pending",
  "assigned",
  "running",
  "orphaned",
  "succeeded",
  "failed",
  "cancelled",
  "unschedulable",
];
const PAGE = 50;
const LEAST_MS = 2000;

interface Listing {
  jobs: Job[];
  next: string | null;
}

export function Jobs() {
  const { query } = place.value;
  const filters = { state: query.get("state") ?? "", name: query.get("name") ?? "", user: query.get("user") ?? "" };
  const asked = Object.entries(filters)
    .filter(([, value]) => value)
    .map(([key, value]) => `&${key}=${part(value)}`)
    .join("");
  const path = `/v1/jobs?limit=${PAGE}${asked}`;
  const { items: listed, first, problem, more, busy, load } = usePaged(path, (page: Listing) => page.jobs, (job) => job.id, {
    concerns: (line) => line.kind === "job",
    leastMs: LEAST_MS,
  });
  const [told, setTold] = useState(new Map<string, FeedLine>());
  const forget = (isKept: (id: string) => boolean) => setTold((known) => new Map([...known].filter(([id]) => isKept(id))));
  // The first page knows the news once it was asked for again; what stands behind it is not asked for again.
  useEffect(() => {
    const fresh = new Set(first?.map((job) => job.id));
    forget((id) => !fresh.has(id));
  }, [first]);
  useEffect(() => {
    const here = new Set(listed?.map((job) => job.id));
    forget((id) => here.has(id));
  }, [listed]);
  useLines((lines) => {
    if (lines.length === 0) forget(() => false); // all is asked for again
    const here = new Set(listed?.map((job) => job.id));
    const news = lines.filter((line) => line.kind === "job" && here.has(line.subject));
    if (news.length) setTold((known) => new Map([...known, ...news.map((line): [string, FeedLine] => [line.subject, line])]));
  });
  const jobs = listed?.map((job) => withNews(job, told.get(job.id)));
  const set = (key: string, value: string) => go("jobs", "", { ...filters, [key]: value });
  return (
    <>
      <div class="head">
        <h1>Jobs</h1>
        <div class="filters">
          <select aria-label="State" value={filters.state} onChange={(event) => set("state", event.currentTarget.value)}>
            <option value="">every state</option>
            {STATES.map((state) => (
              <option key={state}>{state}</option>
            ))}
          </select>
          <DraftInput
            type="search"
            label="Name"
            placeholder="name  ( / )"
            value={filters.name}
            commit={(text) => set("name", text)}
          />
          <DraftInput label="User" placeholder="user" value={filters.user} commit={(text) => set("user", text)} />
        </div>
        {mayAct() && (
          <div class="actions">
            <a class="button" href={link("submit")}>
              New job
            </a>
          </div>
        )}
      </div>
      <Trouble problem={problem} />
      {!jobs && !problem && <Loading />}
      {jobs?.length === 0 &&
        (asked ? (
          <Empty title="No job matches">
            <a href={link("jobs")}>Show all</a>
          </Empty>
        ) : (
          <Empty title="No job yet">
            <p>
              <code>ostler submit -- echo hello</code>
            </p>
            {mayAct() && (
              <p>
                or <a href={link("submit")}>make one here</a>
              </p>
            )}
          </Empty>
        ))}
      {jobs && jobs.length > 0 && <JobTable jobs={jobs} />}
      {more && (
        <button type="button" disabled={busy} onClick={load}>
          Show older ones
        </button>
      )}
    </>
  );
}

/** What a line says of a job is shown at once; the rest when the page is asked for again. */
function withNews(job: Job, line: FeedLine | undefined): Job {
  if (!line?.state) return job;
  const state = line.state as JobState;
  return {
    ...job,
    state,
    reason: line.reason ?? job.reason,
    worker: line.worker ?? job.worker,
    started_at: state === "pending" ? null : (job.started_at ?? (state === "running" ? line.at : null)),
    finished_at: LIVE.includes(state) ? null : (job.finished_at ?? line.at),
  };
}

function JobTable({ jobs }: { jobs: Job[] }) {
  return (
    <Scroll label="Jobs">
      <table>
        <thead>
          <tr>
            <th>id</th>
            <th>name or command</th>
            <th>state</th>
            <th class="wide">machine</th>
            <th class="wide">user</th>
            <th>took</th>
            <th class="wide">submitted</th>
          </tr>
        </thead>
        <tbody>
          {jobs.map((job) => (
            <tr key={job.id}>
              <td>
                <a class="mono" href={link("job", job.id)}>
                  {job.id}
                </a>
              </td>
              <td class="name clip" title={commandOf(job.spec)}>
                {job.name || <span class="dim mono">{commandOf(job.spec)}</span>}
              </td>
              <td title={job.reason}>
                <State of={job.state} />
              </td>
              <td class="wide">{job.worker && <a href={link("machine", job.worker)}>{job.worker}</a>}</td>
              <td class="wide">{job.user_id}</td>
              <td>
                <Took from={job.started_at} to={job.finished_at} />
              </td>
              <td class="wide dim">
                <Ago at={job.submitted_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
