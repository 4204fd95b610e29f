// A state as colour, sign and word: none of the three is needed to read it.

const LOOKS: Record<string, [look: string, sign: string]> = {
  pending: ["waiting", "○"],
  assigned: ["running", "◔"],
  running: ["running", "●"],
  orphaned: ["waiting", "◌"],
  succeeded: ["good", "✓"],
  failed: ["bad", "✕"],
  cancelled: ["gone", "–"],
  unschedulable: ["bad", "⊘"],
  ready: ["good", "●"],
  busy: ["running", "◉"],
  offline: ["bad", "✕"],
  draining: ["waiting", "◐"],
  unreachable: ["waiting", "◌"],
  cooling: ["waiting", "◌"],
  completed: ["good", "✓"],
  claimed: ["running", "◔"],
  starting: ["waiting", "◔"],
  loading: ["waiting", "◔"],
  stopping: ["waiting", "◐"],
  stopped: ["gone", "○"],
};

export function State({ of }: { of: string }) {
  const [look, sign] = LOOKS[of] ?? ["gone", "·"];
  return (
    <span class={`state ${look}`}>
      <span class="sign" aria-hidden="true">
        {sign}
      </span>
      {of}
    </span>
  );
}
