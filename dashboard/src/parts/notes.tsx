// What stands where there is nothing, or where something went wrong: always with what to do next.

import type { ComponentChildren } from "preact";
import type { Problem } from "../api";

export function Trouble({ problem }: { problem: Problem | null }) {
  if (!problem) return null;
  return (
    <div class="note bad" role="alert">
      {problem.message}
      {problem.mistakes.length > 0 && (
        <ul>
          {problem.mistakes.map((mistake) => (
            <li key={mistake.where}>
              <code>{mistake.where}</code>: {mistake.what}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="card empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Loading() {
  return (
    <p class="dim" role="status">
      Loading…
    </p>
  );
}
