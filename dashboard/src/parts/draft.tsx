// A field that shows what is so elsewhere, which may change while one types: what was typed stays until it is committed,
// left, or given up with Escape.

import { useState } from "preact/hooks";

interface Drafted {
  label: string;
  value: string | number;
  commit: (text: string) => void;
  type?: "text" | "search" | "number";
  placeholder?: string;
}

export function DraftInput({ label, value, commit, type = "text", placeholder }: Drafted) {
  const [draft, setDraft] = useState<string | null>(null);
  const drop = () => setDraft(null);

  function changed(text: string) {
    drop();
    commit(text);
  }

  function byKey(event: KeyboardEvent) {
    if (event.key !== "Escape" || draft === null) return;
    event.preventDefault(); // a browser would empty a search field
    drop();
  }

  return (
    <input
      type={type}
      list={undefined} // the types want it said
      aria-label={label}
      placeholder={placeholder}
      value={draft ?? value}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onChange={(event) => changed(event.currentTarget.value)}
      onBlur={drop}
      onKeyDown={byKey}
    />
  );
}
