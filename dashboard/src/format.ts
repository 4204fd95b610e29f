// Times, sizes and names as people read them.

import { nowFor } from "./time";

export function duration(seconds: number): string {
  const milliseconds = Math.round(seconds * 1000);
  if (milliseconds < 1000) return `${milliseconds} ms`;
  const tenths = Math.round(seconds * 10);
  if (tenths < 100) return `${(tenths / 10).toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function ago(at: string | null | undefined): string {
  if (!at) return "never";
  const then = Date.parse(at);
  const seconds = (nowFor(then) - then) / 1000;
  if (seconds < 2) return "now";
  return `${seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds)} ago`;
}

export function between(from: string | null | undefined, to: string | null | undefined): string {
  if (!from) return "";
  const began = Date.parse(from);
  return duration(Math.max(0, (to ? Date.parse(to) : nowFor(began)) - began) / 1000);
}

export function clock(at: string | null | undefined): string {
  if (!at) return "";
  const time = new Date(at);
  const sameDay = time.toDateString() === new Date().toDateString();
  return time.toLocaleString(undefined, sameDay ? { timeStyle: "medium" } : { dateStyle: "short", timeStyle: "medium" });
}

export function gigabytes(value: number): string {
  return value >= 100 ? `${Math.round(value)} GiB` : `${Number(value.toFixed(1))} GiB`;
}

export function count(value: number, one: string, many = `${one}s`): string {
  return `${value.toLocaleString()} ${value === 1 ? one : many}`;
}

export function commandOf(spec: Record<string, unknown>): string {
  const command = spec["command"];
  if (Array.isArray(command)) return command.join(" ");
  const called = spec["function"];
  return typeof called === "object" && called !== null && "name" in called ? `${String(called.name)}()` : "";
}

export function bytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (size >= 1024 && step < units.length - 1) {
    size /= 1024;
    step += 1;
  }
  return `${step && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[step]}`;
}
