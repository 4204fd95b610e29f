// The tasks of an array, a page at a time.

import { useState } from "preact/hooks";
import { useResource } from "../live";
import { link } from "../router";
import type { FeedLine, JobState } from "../shapes";
import { Trouble } from "./notes";
import { Scroll } from "./scroll";
import { State } from "./state";
import { Took } from "./when";

interface Task {
  id: string;
  index: number;
  state: JobState;
  worker: string | null;
  reason: string;
  started_at: string | null;
  finished_at: string | null;
}

const PAGE = 50;

export function Tasks({ path, concerns }: { path: string; concerns: (line: FeedLine) => boolean }) {
  /** Behind which task each page begins that was turned so far. */
  const [turned, setTurned] = useState<number[]>([]);
  const after = turned.length ? `&after=${turned[turned.length - 1]}` : "";
  const { data, problem } = useResource<{ tasks: Task[]; next: number | null }>(`${path}/tasks?limit=${PAGE}${after}`, {
    concerns,
    leastMs: 2000,
  });
  const next = data?.next ?? null;
  return (
    <Scroll label="Tasks">
      <div class="head">
        <h2>Tasks</h2>
        <div class="filters">
          <button type="button" disabled={turned.length === 0} onClick={() => setTurned(turned.slice(0, -1))}>
            Earlier
          </button>
          <button type="button" disabled={next === null} onClick={() => next !== null && setTurned([...turned, next])}>
            Later
          </button>
        </div>
      </div>
      <Trouble problem={problem} />
      {data?.tasks.length === 0 && <p class="dim">None has begun yet; those that wait have no line of their own.</p>}
      <table>
        <thead>
          <tr>
            <th>task</th>
            <th>state</th>
            <th>machine</th>
            <th>took</th>
            <th>reason</th>
          </tr>
        </thead>
        <tbody>
          {data?.tasks.map((task) => (
            <tr key={task.id}>
              <td>
                <a class="mono" href={link("job", task.id)}>
                  {task.id}
                </a>
              </td>
              <td>
                <State of={task.state} />
              </td>
              <td>{task.worker && <a href={link("machine", task.worker)}>{task.worker}</a>}</td>
              <td>
                <Took from={task.started_at} to={task.finished_at} />
              </td>
              <td class="reason">{task.reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
