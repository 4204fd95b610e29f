// The models: which are loaded and where, who waits for which, and the last requests.

import { useRef, useState } from "preact/hooks";
import { ask, part, Problem } from "../api";
import { clock, duration, gigabytes } from "../format";
import { useResource } from "../live";
import { ConfirmButton } from "../parts/confirm";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Playground } from "../parts/playground";
import { Scroll } from "../parts/scroll";
import { State } from "../parts/state";
import { link } from "../router";
import { isOperator, mayAct } from "../session";

interface Model {
  name: string;
  aliases: string[];
  state: string;
  worker: string | null;
  job_id: string | null;
  in_flight: number;
  queued: number;
  waits_for: string | null;
  served: number;
  idle_s: number | null;
  load_s: number | null;
  loads: number;
  stops: number;
  pinned: boolean;
  vram_gb?: number;
  memory_gb?: number;
  error: string | null;
}

interface Request {
  at: string;
  model: string;
  user: string;
  status: number;
  error: string;
  queue_s: number;
  first_byte_s: number;
  total_s: number;
  prompt_tokens: number;
  completion_tokens: number;
  request_id?: string;
}

export function Models() {
  const [chosen, setChosen] = useState("");
  /** To whom one talks without having chosen: whoever was ready at first, whatever is loaded meanwhile. */
  const offered = useRef("");
  const models = useResource<{ models: Model[]; config?: { error: string | null } }>("/v1/models", { concerns: () => true, everyMs: 2000 });
  const activity = useResource<{ activity: Request[] }>("/v1/models/activity", { everyMs: 2000 });
  if (!models.data) return models.problem ? <Trouble problem={models.problem} /> : <Loading />;
  const names = models.data.models.map((model) => model.name);
  if (!names.includes(offered.current)) {
    offered.current = models.data.models.find((model) => model.state === "ready")?.name ?? names[0] ?? "";
  }
  return (
    <>
      <h1>Models</h1>
      <Trouble problem={models.problem ?? activity.problem} />
      {models.data.models.length === 0 ? (
        <Empty title="No models are configured">
          <p>
            Name some under <code>[models]</code> in the hub's <code>ostler.toml</code>; docs/gateway-config.md shows how.
          </p>
        </Empty>
      ) : (
        <>
          <ModelTable models={models.data.models} refresh={models.refresh} talk={setChosen} />
          {models.data.config?.error && (
            <p class="note bad">
              The newest settings are not in force: {models.data.config.error} The file is read again when it changes.
            </p>
          )}
          {mayAct() && (
            <Playground models={names} chosen={names.includes(chosen) ? chosen : offered.current} choose={setChosen} />
          )}
        </>
      )}
      {activity.data && activity.data.activity.length > 0 && <Activity requests={activity.data.activity.slice(0, 100)} />}
    </>
  );
}

interface Listed {
  models: Model[];
  refresh: () => void;
  talk: (model: string) => void;
}

function ModelTable({ models, refresh, talk }: Listed) {
  const act = (model: Model, verb: string) => () =>
    ask(`/v1/models/${part(model.name)}/${verb}`, { method: "POST" }).then(refresh);
  return (
    <Scroll label="Models">
      <table>
        <thead>
          <tr>
            <th>model</th>
            <th>state</th>
            <th class="wide">machine</th>
            <th class="right wide">in flight</th>
            <th class="right">waiting</th>
            <th class="right wide">served</th>
            <th class="right wide">idle for</th>
            <th class="right wide">load took</th>
            <th class="right wide" title="how often it was loaded and how often it made room, since the hub started">
              in / out
            </th>
            <th class="right wide">needs</th>
            <th></th>
          </tr>
        </thead>
        <tbody>
          {models.map((model) => (
            <tr key={model.name}>
              <td>
                {model.job_id ? <a href={link("job", model.job_id)}>{model.name}</a> : model.name}
                {model.pinned && <span class="dim"> pinned</span>}
                {(model.error ?? model.waits_for) && <div class="dim">{model.error ?? model.waits_for}</div>}
              </td>
              <td>
                <State of={model.state} />
              </td>
              <td class="wide">{model.worker && <a href={link("machine", model.worker)}>{model.worker}</a>}</td>
              <td class="right wide">{model.in_flight}</td>
              <td class="right">{model.queued}</td>
              <td class="right wide">{model.served}</td>
              <td class="right wide">{model.idle_s === null || model.in_flight ? "" : duration(model.idle_s)}</td>
              <td class="right wide">{model.load_s === null ? "" : duration(model.load_s)}</td>
              <td class="right wide">
                {model.loads} / {model.stops}
              </td>
              <td class="right wide">{needs(model)}</td>
              <td class="right">
                {mayAct() && (
                  <div class="filters row">
                    <button type="button" onClick={() => talk(model.name)} aria-label={`Talk to ${model.name}`}>
                      Talk
                    </button>
                    {model.state === "stopped" ? (
                      <ConfirmButton label="Load" question={`Load ${model.name}? Others may make room.`} act={act(model, "load")} />
                    ) : (
                      <ConfirmButton
                        label="Unload"
                        question={`Unload ${model.name}? What it answers now ends first.`}
                        act={act(model, "unload")}
                      />
                    )}
                    {isOperator() && (
                      <ActButton label={model.pinned ? "Unpin" : "Pin"} act={act(model, model.pinned ? "unpin" : "pin")} />
                    )}
                  </div>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function ActButton({ label, act }: { label: string; act: () => Promise<unknown> }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  async function clicked() {
    try {
      await act();
      setProblem(null);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    }
  }
  return (
    <>
      <button type="button" onClick={() => void clicked()}>
        {label}
      </button>
      <Trouble problem={problem} />
    </>
  );
}

function needs(model: Model): string {
  const found = [];
  if (model.vram_gb) found.push(`${gigabytes(model.vram_gb)} VRAM`);
  if (model.memory_gb) found.push(gigabytes(model.memory_gb));
  return found.join(", ");
}

function Activity({ requests }: { requests: Request[] }) {
  return (
    <Scroll label="Last requests">
      <h2>Last requests</h2>
      <table>
        <thead>
          <tr>
            <th>when</th>
            <th>model</th>
            <th>user</th>
            <th>status</th>
            <th class="right">waited</th>
            <th class="right">first byte</th>
            <th class="right">took</th>
            <th class="right">tokens/s</th>
          </tr>
        </thead>
        <tbody>
          {requests.map((request, index) => (
            <tr key={`${request.at} ${index}`}>
              <td class="dim" title={request.request_id}>
                {clock(request.at)}
              </td>
              <td>{request.model}</td>
              <td>{request.user}</td>
              <td title={request.error}>{request.status}</td>
              <td class="right">{duration(request.queue_s)}</td>
              <td class="right">{duration(request.first_byte_s)}</td>
              <td class="right">{duration(request.total_s)}</td>
              <td class="right">{speed(request)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function speed(request: Request): string {
  const spoken = request.total_s - request.first_byte_s;
  return request.completion_tokens > 1 && spoken > 0 ? (request.completion_tokens / spoken).toFixed(1) : "";
}
