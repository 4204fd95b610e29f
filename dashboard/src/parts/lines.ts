// The last lines of what a program prints, from pieces of text as they come.

import { afterReturns } from "./ansi";

const KEPT_LINES = 5000;
const LONGEST_LINE = 64 * 1024;

export interface Line {
  number: number;
  text: string;
}

export class LastLines {
  private readonly whole: Line[] = [];
  /** What has come of a line that has not ended: of a progress bar, which may never end one, its last state. */
  private rest = "";
  private number = 0;

  take(text: string): void {
    const [first = "", ...more] = text.split("\n");
    const pieces = [this.rest + first, ...more];
    this.rest = lastState(pieces.pop() ?? "");
    for (const piece of pieces) this.whole.push({ number: this.number++, text: afterReturns(lastState(piece)) });
    if (this.whole.length > KEPT_LINES) this.whole.splice(0, this.whole.length - KEPT_LINES);
  }

  get dropped(): number {
    return this.number - this.whole.length;
  }

  shown(): Line[] {
    const tail = this.rest ? [{ number: this.number, text: afterReturns(this.rest) }] : [];
    return [...this.whole, ...tail];
  }
}

/** A return at the very end may belong to the end of the line, which has not come. */
function lastState(line: string): string {
  const at = line.lastIndexOf("\r", line.length - 2);
  return line.slice(Math.max(at + 1, line.length - LONGEST_LINE));
}
