// Numbers over time, as lines. Redrawn when the room or the theme changes; the last value stands beside the name in words.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

const HEIGHT = 180;
/** Around a single look. */
const MOMENT_S = 30;
/** Told apart by any eye: those of the states, in an order that puts the unlike side by side. */
const COLOURS = ["--running", "--bad", "--good", "--model", "--waiting", "--gone"];

export interface Line {
  name: string;
  values: (number | null)[];
}

interface Shown {
  title: string;
  /** Seconds since 1970 where `overTime`; else whatever it goes along. */
  x: number[];
  lines: Line[];
  along?: string;
  overTime?: boolean;
  /** An amount: drawn from nothing on. */
  fromZero?: boolean;
  told: (value: number) => string;
}

const colour = (element: Element, name: string) => getComputedStyle(element).getPropertyValue(name);

function optionsOf(box: HTMLElement, shown: Shown): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: colour(box, "--dim"),
    grid: { stroke: colour(box, "--line"), width: 1 },
    ticks: { stroke: colour(box, "--line"), width: 1 },
    font: "11px system-ui, sans-serif",
  };
  return {
    width: box.clientWidth || 300,
    height: HEIGHT,
    legend: { show: shown.lines.length > 1 },
    cursor: { drag: { x: true, y: false } },
    scales: {
      x: { time: shown.overTime ?? false, range: (_, low, high) => stretch(low, high, shown.overTime ? MOMENT_S : 0) },
      y: { range: (_, low, high) => bounds(shown.fromZero ? 0 : low, high) },
    },
    axes: [
      shown.overTime ? { ...axis, space: 80, values: (_, ticks) => ticks.map((tick) => clockOf(tick)) } : axis,
      { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => shown.told(tick)) },
    ],
    series: [
      {
        label: shown.along ?? "time",
        value: (_: uPlot, at: number | null) => (at === null ? "" : shown.overTime ? clockOf(at) : String(at)),
      },
      ...shown.lines.map((line, index) => ({
        label: line.name,
        stroke: colour(box, COLOURS[index % COLOURS.length] ?? "--running"),
        width: 2,
        spanGaps: true,
        points: { show: shown.x.length < 40, size: 5 },
        value: (_: uPlot, value: number | null) => (value === null ? "" : shown.told(value)),
      })),
    ],
  };
}

const clockOf = (at: number) => new Date(at * 1000).toLocaleTimeString(undefined, { timeStyle: "medium" });

const largest = (low: number, high: number) => Math.max(Math.abs(low), Math.abs(high));
/** Of numbers that differ by less, beside what they are, no axis can be made: its steps would be lost in rounding. */
const differ = (low: number, high: number) => high - low > largest(low, high) * 1e-9;
const within = (value: number) => Math.min(Math.max(value, -1e300), 1e300);

function stretch(low: number, high: number, least: number): [number, number] {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (differ(within(low), within(high))) return [within(low), within(high)];
  const room = least || largest(within(low), within(high)) / 2 || 1;
  return [within(low) - room, within(high) + room];
}

/** A little room above and below; what is never below nothing begins at nothing where it is near it. */
function bounds(lowest: number, highest: number): [number, number] {
  if (!Number.isFinite(lowest) || !Number.isFinite(highest)) return [0, 1];
  const [low, high] = [within(lowest), within(highest)];
  const span = differ(low, high) ? high - low : largest(low, high) || 1;
  const bottom = low >= 0 && low < span ? 0 : low - span * 0.08;
  return [bottom, high + span * 0.08];
}

export function Curve(shown: Shown) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(shown);
  latest.current = shown;
  const names = shown.lines.map((line) => line.name).join("\n");

  useEffect(() => {
    const here = box.current;
    if (!here) return;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(optionsOf(here, latest.current), dataOf(latest.current), here);
    };
    make();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const sized = new ResizeObserver(() => {
      if (plot.current && plot.current.width !== here.clientWidth) plot.current.setSize({ width: here.clientWidth, height: HEIGHT });
    });
    sized.observe(here);
    dark.addEventListener("change", make);
    return () => {
      sized.disconnect();
      dark.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names]);
  useEffect(() => plot.current?.setData(dataOf(shown)), [shown.x, shown.lines]);

  const last = shown.lines.length === 1 ? shown.lines[0]?.values.filter((value) => value !== null).pop() : undefined;
  return (
    <figure class="curve" aria-label={`${shown.title} over ${shown.along ?? "time"}`}>
      <figcaption>
        {shown.title} {last !== undefined && last !== null && <strong>{shown.told(last)}</strong>}
      </figcaption>
      <div ref={box} role="img" aria-label={`${shown.title}: ${shown.x.length} points`} />
    </figure>
  );
}

const dataOf = (shown: Shown): uPlot.AlignedData => [shown.x, ...shown.lines.map((line) => line.values)];
