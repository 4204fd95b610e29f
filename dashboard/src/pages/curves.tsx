// What an attempt takes, and what it tells of itself, over time.

import { useEffect, useState } from "preact/hooks";
import { bytes } from "../format";
import { useResource } from "../live";
import { Curve } from "../parts/curve";
import { Trouble } from "../parts/notes";
import type { FeedLine, Job } from "../shapes";

interface Curves {
  attempt: string | null;
  taken: { at: string[]; cores: number[]; memory_mib: number[]; vram_mib: number[] } | null;
  metrics: { along: string; series: Record<string, [number, number][]> };
}

const FEW = 6;
const short = (value: number) => Number(value.toPrecision(4)).toString();

interface Wanted {
  job: Job;
  path: string;
  concerns: (line: FeedLine) => boolean;
}

export function CurvesCards({ job, path, concerns }: Wanted) {
  const runs = job.state === "running" || job.state === "orphaned";
  const wanted = { concerns, everyMs: runs ? 5000 : undefined, leastMs: 1500 };
  const { data, problem, refresh } = useResource<Curves>(`${path}/curves`, wanted);
  // The log that is shown beside has been brought here by then, and what the job tells is read from it.
  useEffect(refresh, [data === undefined]);
  if (!data) return <Trouble problem={problem} />;
  return (
    <>
      <Trouble problem={problem} />
      {data.taken && <Taken taken={data.taken} />}
      {!data.taken && runs && (
        <p class="dim">What it takes is drawn here once its worker has told, which it does every ten seconds.</p>
      )}
      {Object.keys(data.metrics.series).length > 0 && <Told metrics={data.metrics} />}
    </>
  );
}

function Taken({ taken }: { taken: NonNullable<Curves["taken"]> }) {
  const x = taken.at.map((at) => Date.parse(at) / 1000);
  const line = (name: string, values: number[]) => [{ name, values }];
  const inWords = (mib: number) => bytes(mib * 2 ** 20);
  return (
    <section class="card" aria-label="What it takes">
      <h2>What it takes</h2>
      <div class="curves">
        <Curve title="memory" x={x} lines={line("memory", taken.memory_mib)} overTime fromZero told={inWords} />
        <Curve title="cores" x={x} lines={line("cores", taken.cores)} overTime fromZero told={short} />
        {taken.vram_mib.some((mib) => mib > 0) && (
          <Curve title="GPU memory" x={x} lines={line("GPU memory", taken.vram_mib)} overTime fromZero told={inWords} />
        )}
      </div>
    </section>
  );
}

function Told({ metrics }: { metrics: Curves["metrics"] }) {
  const [all, setAll] = useState(false);
  const names = Object.keys(metrics.series);
  const shown = all ? names : names.slice(0, FEW);
  return (
    <section class="card" aria-label="What it tells">
      <h2>What it tells</h2>
      <div class="curves">
        {shown.map((name) => {
          const points = metrics.series[name] ?? [];
          return (
            <Curve
              key={name}
              title={name}
              x={points.map(([at]) => at)}
              lines={[{ name, values: points.map(([, value]) => value) }]}
              along={metrics.along}
              told={short}
            />
          );
        })}
      </div>
      {!all && names.length > FEW && (
        <button type="button" onClick={() => setAll(true)}>
          Show {names.length - FEW} more
        </button>
      )}
    </section>
  );
}
