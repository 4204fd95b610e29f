// Colours of terminals as classes: what a program prints is text, never markup.

export interface Run {
  text: string;
  look: string;
}

const NAMES: Record<number, string> = { 1: "a-bold", 2: "a-dim", 3: "a-italic", 4: "a-underline" };
const SEQUENCE = /\x1b\[([0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]/g;

/** One line's runs of one look each. `looks` is what is in force, and goes on into the next line. */
export function runsOf(line: string, looks: Set<string>): Run[] {
  const runs: Run[] = [];
  let from = 0;
  for (const found of line.matchAll(SEQUENCE)) {
    push(runs, line.slice(from, found.index), looks);
    from = found.index + found[0].length;
    if (found[2] === "m") change(looks, (found[1] || "0").split(";").map(Number));
  }
  push(runs, line.slice(from), looks);
  return runs;
}

function push(runs: Run[], text: string, looks: Set<string>): void {
  if (text) runs.push({ text, look: [...looks].join(" ") });
}

function change(looks: Set<string>, codes: number[]): void {
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at] ?? 0;
    if (code === 0) looks.clear();
    else if (NAMES[code]) looks.add(NAMES[code]);
    else if (code === 22) ["a-bold", "a-dim"].forEach((look) => looks.delete(look));
    else if (code === 23) looks.delete("a-italic");
    else if (code === 24) looks.delete("a-underline");
    else if (code === 38 || code === 48) at += codes[at + 1] === 5 ? 2 : 4;
    else if ((code >= 30 && code <= 37) || code === 39 || (code >= 90 && code <= 97)) {
      for (const look of [...looks]) if (/^a-\d/.test(look)) looks.delete(look);
      if (code !== 39) looks.add(`a-${code >= 90 ? code - 60 : code}`);
    }
  }
}

/** What stands on the screen after carriage returns: a progress bar is its last state. */
export function afterReturns(line: string): string {
  const cleaned = line.endsWith("\r") ? line.slice(0, -1) : line;
  const at = cleaned.lastIndexOf("\r");
  return at < 0 ? cleaned : cleaned.slice(at + 1);
}
