// Devices over time: what ran where, when machines were away, and where their time went.

import { useMemo, useRef, useState } from "preact/hooks";
import { clock, duration } from "../format";
import { useResource } from "../live";
import { useNear } from "../parts/near";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { go, link, place } from "../router";
import { groups, lanesOf, lossesOf, type Away, type Block, type Lane, type Loss, type Machine } from "./lanes";

interface Timeline {
  since: string;
  until: string;
  now: string;
  machines: Machine[];
  blocks: Block[];
  away: Away[];
  cut: boolean;
}

const SPANS: [label: string, seconds: number][] = [
  ["15 min", 900],
  ["1 h", 3600],
  ["6 h", 6 * 3600],
  ["1 day", 86_400],
  ["1 week", 7 * 86_400],
];
const WIDTH = 1000;
const NAMES = 150;
const ROW = 18;
const TOP = 20;
const OVERLAP_S = 60;
const MANY = 500;
const MOST = 3000;

export function TimelinePage() {
  const { query } = place.value;
  const span = Number(query.get("span") ?? 3600);
  const until = query.get("until");
  // The same while the window moves: what is new is asked for by itself.
  const path = useMemo(() => {
    const end = until ? Number(until) : Math.floor(Date.now() / 1000);
    return `/v1/timeline?limit=${MOST}&since=${end - span}${until ? `&until=${until}` : ""}`;
  }, [span, until]);
  const busy = useRef(false);
  const { data, problem } = useResource<Timeline>(path, {
    concerns: () => !until,
    everyMs: until ? undefined : 10_000,
    leastMs: busy.current ? 5000 : 2000,
    news: until ? undefined : { path: (known) => `/v1/timeline?since=${since(known) - OVERLAP_S}`, upon: extended(span) },
  });
  busy.current = (data?.blocks.length ?? 0) > MANY;
  const show = (nextSpan: number, nextUntil: number | null) =>
    go("timeline", "", { span: String(Math.round(nextSpan)), until: nextUntil === null ? "" : String(Math.round(nextUntil)) });
  const end = until ? Number(until) : Date.now() / 1000;
  return (
    <>
      <div class="head">
        <h1>Timeline</h1>
        <div class="filters">
          {SPANS.map(([label, seconds]) => (
            <button
              key={label}
              type="button"
              class={seconds === span ? "main" : ""}
              aria-pressed={seconds === span}
              onClick={() => show(seconds, until ? end : null)}
            >
              {label}
            </button>
          ))}
          <button type="button" onClick={() => show(span, end - span / 2)}>
            Earlier
          </button>
          <button type="button" disabled={!until} onClick={() => show(span, end + span / 2 > Date.now() / 1000 ? null : end + span / 2)}>
            Later
          </button>
          <button type="button" disabled={!until} onClick={() => show(span, null)}>
            Now
          </button>
        </div>
      </div>
      <Trouble problem={problem} />
      {!data && !problem && <Loading />}
      {data && data.machines.length === 0 && (
        <Empty title="No machine has joined yet">
          <a href={link("fleet")}>How one joins</a>
        </Empty>
      )}
      {data && data.machines.length > 0 && <Drawn timeline={data} zoom={(from, to) => show(Math.max(60, to - from), to)} />}
    </>
  );
}

const since = (known: Timeline) => Math.floor(Date.parse(known.until) / 1000);

/** What ended or went away since, and what runs now, upon what was known; what is too old to be seen goes. */
function extended(span: number): (known: Timeline, found: Timeline) => Timeline {
  return (known, found) => {
    const from = Date.parse(found.until) - span * 1000;
    const ended = new Map<string, Block>();
    for (const block of [...known.blocks, ...found.blocks]) {
      if (block.finished_at && Date.parse(block.finished_at) > from) ended.set(keyOf(block), block);
    }
    const newest = [...ended.values()].sort((a, b) => ((a.finished_at ?? "") < (b.finished_at ?? "") ? 1 : -1)).slice(0, MOST);
    const running = found.blocks.filter((block) => !block.finished_at);
    const away = new Map([...known.away, ...found.away].map((gap) => [`${gap.worker} ${gap.since}`, gap]));
    return {
      ...found,
      since: new Date(from).toISOString(),
      blocks: [...running, ...newest],
      away: [...away.values()].filter((gap) => !gap.until || Date.parse(gap.until) > from),
      cut: known.cut || found.cut || ended.size > MOST,
    };
  };
}

/** Others' have no name; where and when something began is enough to tell them apart. */
const keyOf = (block: Block) => block.attempt || `${block.worker} ${block.started_at} ${block.devices.join()}`;

function Drawn({ timeline, zoom }: { timeline: Timeline; zoom: (from: number, to: number) => void }) {
  const from = Date.parse(timeline.since) / 1000;
  const to = Date.parse(timeline.until) / 1000;
  const machines = useMemo(
    () => [...groups(lanesOf(timeline.machines, timeline.blocks, timeline.away, to), (lane) => lane.machine)],
    [timeline],
  );
  const losses = useMemo(() => lossesOf(timeline.machines, timeline.blocks, timeline.away, from, to), [timeline]);
  const x = (at: number) => NAMES + ((Math.min(Math.max(at, from), to) - from) / (to - from)) * (WIDTH - NAMES);
  const marks = ticks(from, to).map(x);

  function picked(event: MouseEvent) {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    if (at < NAMES) return;
    const time = from + ((at - NAMES) / (WIDTH - NAMES)) * (to - from);
    zoom(time - (to - from) / 4, time + (to - from) / 4);
  }

  return (
    <>
      {timeline.cut && <p class="note">More ran in this time than is drawn. Choose a shorter one.</p>}
      <Scroll label="Devices over time">
        <div
          role="group"
          aria-label={`${timeline.blocks.length} attempts on ${timeline.machines.length} machines`}
          onDblClick={picked}
        >
          <svg class="timeline" viewBox={`0 0 ${WIDTH} ${TOP}`} aria-hidden="true">
            {ticks(from, to).map((at) => (
              <text key={at} x={x(at)} y={11} text-anchor="middle">
                {clock(new Date(at * 1000).toISOString()).replace(/:\d\d$/, "")}
              </text>
            ))}
          </svg>
          {machines.map(([machine, lanes]) => (
            <MachineLanes key={machine} machine={machine} lanes={lanes} x={x} marks={marks} />
          ))}
        </div>
      </Scroll>
      <p class="dim">A click on a block opens its job; two clicks beside one look closer.</p>
      <Losses losses={losses} />
    </>
  );
}

interface Lanes {
  machine: string;
  lanes: Lane[];
  x: (at: number) => number;
  marks: number[];
}

/** Drawn where it can be seen; elsewhere it only takes its room. */
function MachineLanes({ machine, lanes, x, marks }: Lanes) {
  const drawing = useRef<SVGSVGElement>(null);
  const near = useNear(drawing);
  const height = lanes.reduce((sum, lane) => sum + lane.rows * ROW + 4, 0);
  const blocks = lanes.reduce((sum, lane) => sum + lane.blocks.length, 0);
  let y = 0;
  return (
    <svg ref={drawing} class="timeline" viewBox={`0 0 ${WIDTH} ${height}`} role="img" aria-label={`${machine}: ${blocks} attempts`}>
      {near && marks.map((at) => <line key={at} class="axis" x1={at} x2={at} y1={0} y2={height} />)}
      {near &&
        lanes.map((lane) => {
          const top = y;
          y += lane.rows * ROW + 4;
          return <LaneRows key={lane.key} lane={lane} top={top} x={x} />;
        })}
    </svg>
  );
}

function LaneRows({ lane, top, x }: { lane: Lane; top: number; x: (at: number) => number }) {
  return (
    <g>
      <text class="lane" x={0} y={top + 12}>
        {lane.label}
      </text>
      <rect class="ground" x={NAMES} y={top} width={WIDTH - NAMES} height={lane.rows * ROW} />
      {lane.away.map((gap) => (
        <rect
          key={`${gap.from}`}
          class="away"
          x={x(gap.from)}
          y={top}
          width={Math.max(1, x(gap.to) - x(gap.from))}
          height={lane.rows * ROW}
        >
          <title>{gap.title}</title>
        </rect>
      ))}
      {lane.blocks.map((block) => (
        <rect
          key={block.key}
          class={`block ${block.look}`}
          x={x(block.from)}
          y={top + block.row * ROW + 1}
          width={Math.max(1.5, x(block.to) - x(block.from))}
          height={ROW - 2}
          onClick={() => block.job && go("job", block.job)}
        >
          <title>{block.title}</title>
        </rect>
      ))}
    </g>
  );
}

function ticks(from: number, to: number): number[] {
  const steps = [60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400];
  const step = steps.find((one) => (to - from) / one <= 8) ?? 86_400;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at < to; at += step) found.push(at);
  return found;
}

const PARTS: [key: keyof Omit<Loss, "machine" | "total">, title: string][] = [
  ["used", "used"],
  ["failed", "spent on what did not succeed"],
  ["away", "away"],
  ["idle", "idle"],
];

const FEW = 20;

/** The sum first, then those that lost most. */
function Losses({ losses }: { losses: Loss[] }) {
  const [all, setAll] = useState(false);
  const inOrder = [...losses].sort((a, b) => Number(!b.machine) - Number(!a.machine) || a.used / (a.total || 1) - b.used / (b.total || 1));
  return (
    <Scroll label="Where the time went">
      <h2>Where the time went</h2>
      <table>
        <thead>
          <tr>
            <th>machine</th>
            {PARTS.map(([key, title]) => (
              <th key={key} class="right">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {(all ? inOrder : inOrder.slice(0, FEW)).map((loss) => (
            <tr key={loss.machine}>
              <td>{loss.machine ? <a href={link("machine", loss.machine)}>{loss.machine}</a> : "all together"}</td>
              {PARTS.map(([key]) => (
                <td key={key} class="right">
                  {Math.round((100 * loss[key]) / (loss.total || 1))} %{" "}
                  <span class="dim wide">{loss[key] > 0 ? duration(loss[key]) : ""}</span>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {!all && losses.length > FEW && (
        <button type="button" onClick={() => setAll(true)}>
          Show all {losses.length - 1} machines
        </button>
      )}
      <p class="dim">Of each GPU's time; of machines without one, of the machine's.</p>
    </Scroll>
  );
}
