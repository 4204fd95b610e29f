// Times, sizes and names as people read them.

export function duration(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function ago(at: string | null | undefined, now = Date.now()): string {
  if (!at) return "never";
  const seconds = (now - Date.parse(at)) / 1000;
  if (seconds < 2) return "now";
  return `${seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds)} ago`;
}

export function between(from: string | null | undefined, to: string | null | undefined): string {
  if (!from) return "";
  return duration(Math.max(0, (to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000);
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
