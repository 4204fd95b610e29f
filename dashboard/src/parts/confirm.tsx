// Asked before anything that cannot be taken back.

import { useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "../api";
import { Trouble } from "./notes";

interface Asked {
  label: string;
  question: string;
  act: () => Promise<unknown>;
  disabled?: boolean;
}

export function ConfirmButton({ label, question, act, disabled }: Asked) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    if (asking) dialog.current?.showModal();
  }, [asking]);

  async function confirmed(event: Event) {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await act();
      setAsking(false);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    } finally {
      setBusy(false);
    }
  }

  return (
    <>
      <button type="button" disabled={disabled} onClick={() => setAsking(true)}>
        {label}
      </button>
      {asking && (
        <dialog ref={dialog} aria-label={label} onClose={() => setAsking(false)}>
          <form onSubmit={confirmed}>
            <p>{question}</p>
            <Trouble problem={problem} />
            <div class="filters">
              <button class="main" disabled={busy}>
                {label}
              </button>
              <button type="button" onClick={() => setAsking(false)}>
                Leave it
              </button>
            </div>
          </form>
        </dialog>
      )}
    </>
  );
}
