// One machine: what it offers, what it holds, and the two things one may ask of it.

import { ask, part } from "../api";
import { gigabytes } from "../format";
import { useResource } from "../live";
import { Meter } from "../parts/bar";
import { ConfirmButton } from "../parts/confirm";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { State } from "../parts/state";
import { Ago } from "../parts/when";
import { link, place } from "../router";
import { isOperator } from "../session";
import type { Worker } from "../shapes";
import { DeviceCell } from "./fleet";

interface Holding {
  task_id: string;
  job_name: string;
  status: string;
  started_at: string | null;
}

export function MachinePage() {
  const id = place.value.id;
  const path = `/v1/workers/${part(id)}`;
  const { data, problem, refresh } = useResource<Worker & { jobs: Holding[] }>(path, {
    concerns: (line) => line.worker === id || line.subject === id,
    everyMs: 10_000,
  });
  if (!data) {
    if (problem?.status === 404) {
      return (
        <Empty title={`There is no machine ${id}`}>
          <a href={link("fleet")}>Show all machines</a>
        </Empty>
      );
    }
    return problem ? <Trouble problem={problem} /> : <Loading />;
  }
  const act = (verb: string) => async () => {
    await ask(`${path}/${verb}`, { method: "POST" });
    refresh();
  };
  return (
    <>
      <div class="head">
        <h1>{data.id}</h1>
        <State of={data.status !== "offline" && data.draining ? "draining" : data.status} />
        <span class="dim">heard <Ago at={data.last_contact} /></span>
        {isOperator() && (
          <div class="actions">
            {data.draining ? (
              <ConfirmButton label="Resume" question={`Let ${data.id} take new work again?`} act={act("resume")} />
            ) : (
              <ConfirmButton
                label="Drain"
                question={`Close ${data.id} to new work? What runs there ends in peace.`}
                act={act("drain")}
              />
            )}
          </div>
        )}
      </div>
      <Trouble problem={problem} />
      <div class="columns">
        <section class="card">
          <h2>Room</h2>
          <div class="devices">
            {data.devices.map((device) => (
              <DeviceCell key={device.index} device={device} />
            ))}
          </div>
          <Meter name="cores" held={data.cpu_count - data.free.cores} total={data.cpu_count} unit="" />
          <Meter name="memory" held={data.memory_gb - data.free.memory_gb} total={data.memory_gb} unit="GiB" />
        </section>
        <section class="card">
          <h2>Offer</h2>
          <dl>
            <dt>backend</dt>
            <dd>{data.backend}</dd>
            <dt>GPUs</dt>
            <dd>{data.gpu_count ? `${data.gpu_count}, ${gigabytes(data.vram_gb)} together` : "none"}</dd>
            <dt>slots</dt>
            <dd>{data.total_slots}</dd>
            {Object.entries(data.labels).map(([label, value]) => (
              <>
                <dt key={label}>{label}</dt>
                <dd>{value}</dd>
              </>
            ))}
          </dl>
        </section>
      </div>
      <Scroll label="What it holds">
        <h2>What it holds</h2>
        {data.jobs.length === 0 && <p class="dim">Nothing.</p>}
        {data.jobs.length > 0 && (
          <table>
            <thead>
              <tr>
                <th>task</th>
                <th>name</th>
                <th>state</th>
                <th>since</th>
              </tr>
            </thead>
            <tbody>
              {data.jobs.map((held) => (
                <tr key={held.task_id}>
                  <td>
                    <a class="mono" href={link("job", held.task_id)}>
                      {held.task_id}
                    </a>
                  </td>
                  <td>{held.job_name}</td>
                  <td>
                    <State of={held.status} />
                  </td>
                  <td>
                    <Ago at={held.started_at} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </Scroll>
    </>
  );
}
