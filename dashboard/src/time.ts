// The time as it passes, for what is shown as so long ago: by the second while that is news, by the minute later, and
// not while nobody looks.

import { signal } from "@preact/signals";

const LONG_MS = 3_600_000;

const second = signal(0);
const minute = signal(0);

function pass(): void {
  if (document.hidden) return;
  second.value = Math.floor(Date.now() / 1000);
  minute.value = Math.floor(Date.now() / 60_000);
}
window.setInterval(pass, 1000);
document.addEventListener("visibilitychange", pass);

/** The time now. Whatever is drawn with it is drawn again as time passes: more seldom the longer ago this was. */
export function nowFor(since: number): number {
  const now = Date.now();
  void (now - since < LONG_MS ? second : minute).value;
  return now;
}
