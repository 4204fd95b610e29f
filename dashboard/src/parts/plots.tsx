// Runs of a sweep as points, and as lines over all that was varied. Text values stand side by side, numbers to scale.

import { go } from "../router";

export interface Point {
  job_id: string;
  name: string;
  hyper: Record<string, unknown>;
  value: number | null;
  status: string;
}

const WIDTH = 640;
const HEIGHT = 320;
const MARGIN = { left: 56, right: 20, top: 16, bottom: 40 };

interface Scale {
  at: (value: unknown) => number;
  ticks: [position: number, label: string][];
}

function scaleOf(values: unknown[], from: number, to: number): Scale {
  const numbers = values.filter((value): value is number => typeof value === "number");
  if (numbers.length === values.length && numbers.length) return numeric(numbers, from, to);
  const names = [...new Set(values.map(String))].sort();
  const step = (to - from) / (names.length + 1);
  const at = (value: unknown) => from + step * (names.indexOf(String(value)) + 1);
  return { at, ticks: names.map((name) => [at(name), name]) };
}

/** Logarithmic where the numbers span more than two decades, as learning rates do. */
function numeric(numbers: number[], from: number, to: number): Scale {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const byPower = low > 0 && high / low > 100;
  const place = (value: number) => (byPower ? Math.log10(value) : value);
  const width = place(high) - place(low) || 1;
  const at = (value: unknown) => from + ((place(Number(value)) - place(low)) / width) * (to - from);
  const middle = byPower ? Math.sqrt(low * high) : (low + high) / 2;
  const told = low === high ? [low] : [low, middle, high];
  return { at, ticks: told.map((value) => [at(value), Number(value.toPrecision(3)).toString()]) };
}

const known = (points: Point[]) => points.filter((point): point is Point & { value: number } => point.value !== null);

interface Shown {
  points: Point[];
  metric: string;
  best: string | undefined;
}

export function Scatter({ points, metric, best, along }: Shown & { along: string }) {
  const found = known(points).filter((point) => along in point.hyper);
  if (found.length === 0) return <p class="dim">No run has told its {metric || "metric"} yet.</p>;
  const x = scaleOf(found.map((point) => point.hyper[along]), MARGIN.left, WIDTH - MARGIN.right);
  const y = scaleOf(found.map((point) => point.value), HEIGHT - MARGIN.bottom, MARGIN.top);
  return (
    <svg class="plot" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${metric} by ${along}`}>
      <line class="axis" x1={MARGIN.left} x2={MARGIN.left} y1={MARGIN.top} y2={HEIGHT - MARGIN.bottom} />
      <line
        class="axis"
        x1={MARGIN.left}
        x2={WIDTH - MARGIN.right}
        y1={HEIGHT - MARGIN.bottom}
        y2={HEIGHT - MARGIN.bottom}
      />
      {x.ticks.map(([at, label]) => (
        <text key={label} x={at} y={HEIGHT - MARGIN.bottom + 16} text-anchor={at > MARGIN.left ? "middle" : "start"}>
          {label}
        </text>
      ))}
      {y.ticks.map(([at, label]) => (
        <text key={label} x={MARGIN.left - 6} y={at + 4} text-anchor="end">
          {label}
        </text>
      ))}
      <text x={(WIDTH + MARGIN.left) / 2} y={HEIGHT - 6} text-anchor="middle">
        {along}
      </text>
      {found.map((point) => (
        <circle
          key={point.job_id}
          class={point.job_id === best ? "best" : ""}
          cx={x.at(point.hyper[along])}
          cy={y.at(point.value)}
          r={point.job_id === best ? 7 : 5}
          onClick={() => go("job", point.job_id)}
        >
          <title>{told(point, metric)}</title>
        </circle>
      ))}
    </svg>
  );
}

export function Parallel({ points, metric, best }: Shown) {
  const found = known(points);
  const axes = [...new Set(found.flatMap((point) => Object.keys(point.hyper)))];
  if (found.length === 0 || axes.length === 0) return null;
  const [top, bottom] = [MARGIN.top + 8, HEIGHT - MARGIN.bottom];
  const columns = [...axes, metric].map((name, index) => {
    const of = (point: Point) => (index < axes.length ? point.hyper[name] : point.value);
    const x = MARGIN.left + (index * (WIDTH - MARGIN.left - 40)) / axes.length;
    return { name, of, x, scale: scaleOf(found.map(of), bottom, top) };
  });
  const line = (point: Point) =>
    columns.map((column, index) => `${index ? "L" : "M"}${column.x} ${column.scale.at(column.of(point))}`).join("");
  const inOrder = [...found].sort((a, b) => Number(a.job_id === best) - Number(b.job_id === best));
  return (
    <svg class="plot" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`Every run over ${axes.join(", ")}`}>
      {inOrder.map((point) => (
        <path
          key={point.job_id}
          class={point.job_id === best ? "best" : ""}
          d={line(point)}
          onClick={() => go("job", point.job_id)}
        >
          <title>{told(point, metric)}</title>
        </path>
      ))}
      {columns.map((column) => (
        <g key={column.name}>
          <line class="axis" x1={column.x} x2={column.x} y1={top} y2={bottom} />
          <text x={column.x} y={HEIGHT - 8} text-anchor="middle">
            {column.name}
          </text>
          {column.scale.ticks.map(([at, label]) => (
            <text key={label} x={column.x - 5} y={at + 4} text-anchor="end">
              {label}
            </text>
          ))}
        </g>
      ))}
    </svg>
  );
}

function told(point: Point, metric: string): string {
  const varied = Object.entries(point.hyper).map(([name, value]) => `${name}=${String(value)}`);
  return [point.name || point.job_id, `${metric}=${point.value}`, ...varied].join("\n");
}
