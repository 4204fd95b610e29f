// Many machines at once: a small square for each GPU, or for each machine without one. The cards below tell the same in words.

import { useEffect, useRef } from "preact/hooks";
import { count } from "../format";
import { go } from "../router";
import type { Worker } from "../shapes";

const LARGE = 20;
const SMALL = 11;
const MANY = 300;
const GAP = 2;
const BETWEEN = 7;

type Look = "held" | "part" | "free" | "closed" | "away";
const COLOURS: Record<Look, [variable: string, words: string]> = {
  held: ["--running", "held"],
  part: ["--model", "held in part"],
  free: ["--track", "free"],
  closed: ["--waiting", "free, but closed to new work"],
  away: ["--bad", "offline"],
};

interface Box {
  x: number;
  y: number;
  width: number;
  machine: Worker;
}

function looksOf(machine: Worker): Look[] {
  const cells = machine.devices.length || 1;
  if (machine.status === "offline") return Array<Look>(cells).fill("away");
  const free: Look = machine.draining || machine.cooling ? "closed" : "free";
  if (!machine.devices.length) return [machine.active_jobs === 0 ? free : machine.free.cores >= 1 ? "part" : "held"];
  return machine.devices.map((device) => {
    if (!device.held_by.length) return free;
    return device.held_by.some((holder) => holder.vram_gb === null) ? "held" : "part";
  });
}

interface Placed {
  boxes: Box[];
  side: number;
  height: number;
}

function placed(machines: Worker[], width: number): Placed {
  const cells = machines.reduce((sum, machine) => sum + (machine.devices.length || 1), 0);
  const side = cells > MANY ? SMALL : LARGE;
  const boxes: Box[] = [];
  let [x, y] = [0, 0];
  for (const machine of machines) {
    const wide = (machine.devices.length || 1) * (side + GAP) - GAP;
    if (x > 0 && x + wide > width) [x, y] = [0, y + side + BETWEEN];
    boxes.push({ x, y, width: wide, machine });
    x += wide + BETWEEN;
  }
  return { boxes, side, height: y + side };
}

/** `version` is another number whenever any of the machines has changed. */
export function Overview({ machines, version }: { machines: () => Worker[]; version: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const shown = useRef<Placed>({ boxes: [], side: LARGE, height: 0 });

  function draw(): void {
    const here = canvas.current;
    const pen = here?.getContext("2d");
    if (!here || !pen) return;
    const width = here.parentElement?.clientWidth ?? 300;
    const found = placed(machines(), width);
    shown.current = found;
    const sharp = window.devicePixelRatio || 1;
    here.width = width * sharp;
    here.height = found.height * sharp;
    pen.scale(here.width / width, sharp);
    const styles = getComputedStyle(here);
    const colours = new Map(Object.entries(COLOURS).map(([look, [name]]) => [look, styles.getPropertyValue(name)]));
    for (const box of found.boxes) {
      looksOf(box.machine).forEach((look, index) => {
        pen.fillStyle = colours.get(look) ?? "";
        pen.fillRect(box.x + index * (found.side + GAP), box.y, found.side, found.side);
      });
    }
  }

  useEffect(draw, [version, machines]);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("resize", draw);
    dark.addEventListener("change", draw);
    return () => {
      removeEventListener("resize", draw);
      dark.removeEventListener("change", draw);
    };
  });

  function under(event: MouseEvent): Box | undefined {
    const { offsetX: x, offsetY: y } = event;
    const { boxes, side } = shown.current;
    return boxes.find((box) => x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + side);
  }

  function pointed(event: MouseEvent): void {
    const box = under(event);
    const here = event.currentTarget as HTMLCanvasElement;
    here.title = box ? titleOf(box.machine) : "";
    here.classList.toggle("pick", box !== undefined);
  }

  function picked(event: MouseEvent): void {
    const box = under(event);
    if (box) go("machine", box.machine.id);
  }

  const all = machines();
  const away = all.filter((machine) => machine.status === "offline").length;
  return (
    <section class="card overview" aria-label="All machines at a glance">
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${count(all.length, "machine")}, ${away} offline; each is a card below`}
        onMouseMove={pointed}
        onClick={picked}
      />
      <div class="legend dim" aria-hidden="true">
        {Object.entries(COLOURS).map(([look, [, words]]) => (
          <span key={look}>
            <i class={`key ${look}`} /> {words}
          </span>
        ))}
      </div>
    </section>
  );
}

function titleOf(machine: Worker): string {
  const held = machine.devices.filter((device) => device.held_by.length).length;
  const gpus = machine.devices.length ? `${held} of ${count(machine.devices.length, "GPU")} held` : "no GPU";
  return `${machine.id}: ${machine.status}, ${gpus}, ${count(machine.active_jobs, "task")}`;
}
