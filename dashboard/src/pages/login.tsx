import { useState } from "preact/hooks";
import { Problem } from "../api";
import { Trouble } from "../parts/notes";
import { logIn } from "../session";

export function Login() {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);

  async function enter(event: SubmitEvent) {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    setBusy(true);
    try {
      await logIn(String(new FormData(form).get("token")).trim());
    } catch (error) {
      setProblem(error as Problem);
    } finally {
      setBusy(false);
    }
  }

  return (
    <main class="login">
      <div class="card">
        <h1>Ostler</h1>
        <p class="dim">
          Paste a token. On the hub's own machine it is in <code>admin.token</code> of the state folder; for somebody else{" "}
          <code>ostler token create --role user --user NAME</code> makes one.
        </p>
        <form onSubmit={enter}>
          <label>
            Token
            <br />
            <input name="token" type="password" required autocomplete="current-password" size={40} autofocus />
          </label>
          <Trouble problem={problem} />
          <button class="main" disabled={busy}>
            Log in
          </button>
        </form>
      </div>
    </main>
  );
}
