// A talk with a model, as it answers. What was said stays in this page, and is gone with it.

import { useEffect, useRef, useState } from "preact/hooks";
import { open, Problem } from "../api";
import { duration } from "../format";
import { Trouble } from "./notes";

interface Said {
  role: "user" | "assistant";
  content: string;
  /** What a model says to itself, or the gateway while it loads one. */
  aside?: string;
  told?: string;
}

interface Delta {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null } }[];
  usage?: { completion_tokens?: number } | null;
  error?: { message?: string };
}

const PAINT_MS = 60;

export function Playground({ models, chosen, choose }: { models: string[]; chosen: string; choose: (model: string) => void }) {
  const [talk, setTalk] = useState<Said[]>([]);
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const stop = useRef<AbortController | null>(null);
  const [busy, setBusy] = useState(false);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => () => stop.current?.abort(), []);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [talk]);

  async function say(event: Event) {
    event.preventDefault();
    if (!text.trim() || busy) return;
    const asked: Said[] = [...talk, { role: "user", content: text.trim() }];
    setTalk(asked);
    setText("");
    setProblem(null);
    setBusy(true);
    stop.current = new AbortController();
    try {
      await answer(chosen, asked, stop.current.signal, (said) => setTalk([...asked, said]));
    } catch (error) {
      setTalk((known) => known.filter((said) => said.role === "user" || said.content));
      if (!stop.current.signal.aborted) setProblem(error instanceof Problem ? error : new Problem(0, "The answer broke off. Ask again."));
    } finally {
      setBusy(false);
    }
  }

  function byKey(event: KeyboardEvent) {
    // While a word is put together from several keys, Enter ends the word.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) void say(event);
  }

  return (
    <section class="card" aria-label="Talk to a model">
      <div class="head">
        <h2>Talk to</h2>
        <select aria-label="Model" value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
          {models.map((model) => (
            <option key={model}>{model}</option>
          ))}
        </select>
        <div class="actions">
          <button type="button" disabled={!talk.length || busy} onClick={() => setTalk([])}>
            Begin anew
          </button>
        </div>
      </div>
      <div class="talk" aria-live="polite">
        {talk.map((said, index) => (
          <div key={index} class={`said ${said.role}`}>
            {said.aside && <p class="dim">{said.aside}</p>}
            <p>{said.content || (busy && said.role === "assistant" ? "…" : "")}</p>
            {said.told && <p class="dim">{said.told}</p>}
          </div>
        ))}
        <div ref={end} />
      </div>
      <Trouble problem={problem} />
      <form class="ask" onSubmit={say}>
        <textarea
          rows={2}
          aria-label="What to say"
          placeholder="Say something; Enter sends it"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={byKey}
        />
        {busy ? (
          <button type="button" onClick={() => stop.current?.abort()}>
            Stop
          </button>
        ) : (
          <button class="main" disabled={!text.trim()}>
            Send
          </button>
        )}
      </form>
    </section>
  );
}

/** Reads the answer as it comes, and shows it a few times a second. */
async function answer(model: string, talk: Said[], signal: AbortSignal, show: (said: Said) => void): Promise<void> {
  const messages = talk.map(({ role, content }) => ({ role, content }));
  const began = performance.now();
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  let [content, aside, pieces, tokens, first, shown] = ["", "", 0, 0, 0, 0];
  const told = () => ({ role: "assistant", content, aside, told: speed(began, first, tokens || pieces) }) as const;
  show({ role: "assistant", content });
  try {
    const response = await open("/v1/models/chat", { method: "POST", body, signal });
    for await (const delta of deltas(response)) {
      if (delta.error) throw new Problem(502, delta.error.message ?? "The model failed to answer. Its log says why.");
      const said = delta.choices?.[0]?.delta;
      aside += said?.reasoning_content ?? "";
      if (said?.content) {
        first ||= performance.now();
        content += said.content;
        pieces += 1;
      }
      tokens = delta.usage?.completion_tokens ?? tokens;
      if (performance.now() - shown > PAINT_MS) {
        shown = performance.now();
        show(told());
      }
    }
  } finally {
    show(told());
  }
}

async function* deltas(response: Response): AsyncGenerator<Delta> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data && data !== "[DONE]") yield JSON.parse(data) as Delta;
    }
  }
}

function speed(began: number, first: number, tokens: number): string {
  if (!first) return `${duration((performance.now() - began) / 1000)} so far`;
  const spoken = (performance.now() - first) / 1000;
  const rate = tokens > 1 && spoken > 0.05 ? `, ${(tokens / spoken).toFixed(1)} tokens/s` : "";
  return `first word after ${duration((first - began) / 1000)}, ${tokens} tokens${rate}`;
}
