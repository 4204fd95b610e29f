// Who is next, when each is expected to begin, and who has used how much; and what may be done about it.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, part, Problem } from "../api";
import { count, duration } from "../format";
import { useResource } from "../live";
import { Bar } from "../parts/bar";
import { ConfirmButton } from "../parts/confirm";
import { DraftInput } from "../parts/draft";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { link } from "../router";
import { mayAct } from "../session";

const PAGE = 50;
const MOST = 1000;

interface Place {
  place: number;
  id: string;
  name: string;
  user: string;
  priority: number;
  tier: string;
  waited_s: number;
  tasks: number;
  gpus: number;
  cores: number;
  memory_gb: number;
  nodes: number;
  words: string | null;
}

interface User {
  user: string;
  gpu_seconds: number;
  gpus_held: number;
}

interface Listing {
  waiting: number;
  queue: Place[];
  users: User[];
}

export function Queue() {
  const [limit, setLimit] = useState(PAGE);
  const listing = useResource<Listing>(`/v1/queue?limit=${limit}`, {
    concerns: (line) => line.kind !== "worker",
    everyMs: 5000,
    leastMs: 2000,
  });
  // While more is asked for, what is there stays.
  const last = useRef<Listing>(undefined);
  last.current = listing.data ?? last.current;
  const { problem, refresh } = listing;
  const data = last.current;
  if (!data) return problem ? <Trouble problem={problem} /> : <Loading />;
  return (
    <>
      <div class="head">
        <h1>Queue</h1>
        <span class="dim">{count(data.waiting, "job")} waiting</span>
      </div>
      <Trouble problem={problem} />
      {data.queue.length === 0 ? (
        <Empty title="Nothing waits">
          <a href={link("jobs")}>Show all jobs</a>
        </Empty>
      ) : (
        <Places places={data.queue} refresh={refresh} />
      )}
      {data.queue.length >= limit && limit < MOST && (
        <button type="button" onClick={() => setLimit(Math.min(MOST, limit * 2))}>
          Show more
        </button>
      )}
      {data.users.length > 0 && <Shares users={data.users} />}
    </>
  );
}

function needs(place: Place): string {
  const found = [];
  if (place.nodes > 1) found.push(`${place.nodes} machines, each`);
  if (place.gpus) found.push(count(place.gpus, "GPU"));
  if (place.cores) found.push(count(place.cores, "core"));
  if (place.memory_gb) found.push(`${place.memory_gb} GiB`);
  return found.join(", ") || "little";
}

function Places({ places, refresh }: { places: Place[]; refresh: () => void }) {
  return (
    <Scroll label="Queue">
      <table>
        <thead>
          <tr>
            <th class="right">place</th>
            <th>job</th>
            <th class="wide">user</th>
            <th>priority</th>
            <th class="wide">tier</th>
            <th>needs</th>
            <th>waits for</th>
            <th>begins</th>
            <th></th>
          </tr>
        </thead>
        <tbody>
          {places.map((place) => (
            <tr key={place.id}>
              <td class="right">{place.place}</td>
              <td class="name clip">
                <a href={link("job", place.id)}>{place.name || place.id}</a>
                {place.tasks > 1 && <span class="dim"> × {place.tasks}</span>}
              </td>
              <td class="wide">{place.user}</td>
              <td>
                <Priority place={place} changed={refresh} />
              </td>
              <td class="wide">{place.tier}</td>
              <td>{needs(place)}</td>
              <td>{duration(place.waited_s)}</td>
              <td class="dim">{place.words ?? "…"}</td>
              <td class="right">
                {mayAct() && (
                  <ConfirmButton
                    label="Cancel"
                    question={`End ${place.name || place.id} before it has begun?`}
                    act={() => ask(`/v1/jobs/${part(place.id)}/cancel`, { method: "POST" }).then(refresh)}
                  />
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Priority({ place, changed }: { place: Place; changed: () => void }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  /** What was set, until the queue is looked at again. */
  const [set, setSet] = useState<number | null>(null);
  useEffect(() => setSet(null), [place]);
  if (!mayAct()) return <>{place.priority}</>;

  async function commit(text: string) {
    const priority = Number(text);
    if (!text.trim() || !Number.isInteger(priority)) return;
    setSet(priority);
    try {
      await ask(`/v1/jobs/${part(place.id)}/priority`, { method: "POST", body: { priority } });
      setProblem(null);
    } catch (error) {
      setSet(null);
      setProblem(error as Problem);
    }
    changed();
  }

  return (
    <>
      <DraftInput
        type="number"
        label={`Priority of ${place.name || place.id}`}
        value={set ?? place.priority}
        commit={(text) => void commit(text)}
      />
      <Trouble problem={problem} />
    </>
  );
}

function Shares({ users }: { users: User[] }) {
  const most = Math.max(...users.map((user) => user.gpu_seconds), 1);
  return (
    <section class="card">
      <h2>Who has used how much lately</h2>
      <p class="dim">Within a priority and a tier, whoever has used least goes first; what is long ago counts less.</p>
      {users.map((user) => (
        <div class="meter" key={user.user}>
          <span class="clip">{user.user}</span>
          <div class="bar">
            <Bar
              pieces={[{ share: user.gpu_seconds / most, look: "running" }]}
              label={`${user.user}: ${user.gpu_seconds} GPU-seconds`}
            />
          </div>
          <span class="dim right">
            {duration(user.gpu_seconds)} of a GPU{user.gpus_held > 0 && `, holds ${user.gpus_held}`}
          </span>
        </div>
      ))}
    </section>
  );
}
