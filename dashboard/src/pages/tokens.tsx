// Who may come in. A new token's secret is shown once, here, and is kept nowhere.

import { useState } from "preact/hooks";
import { ask, part, Problem } from "../api";
import { clock } from "../format";
import { useResource } from "../live";
import { ConfirmButton } from "../parts/confirm";
import { Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { Ago } from "../parts/when";

interface Token {
  id: string;
  role: string;
  user: string;
  created_at: string | null;
  expires_at: string | null;
  revoked_at: string | null;
}

const ROLES = ["viewer", "user", "operator", "worker", "gateway"];

export function Tokens() {
  const { data, problem, refresh } = useResource<{ tokens: Token[] }>("/v1/tokens");
  const good = data?.tokens.filter((token) => !token.revoked_at);
  return (
    <>
      <h1>Tokens</h1>
      <Trouble problem={problem} />
      <NewToken made={refresh} />
      {!good && !problem && <Loading />}
      {good && (
        <Scroll label="Tokens">
          <table>
            <thead>
              <tr>
                <th>id</th>
                <th>role</th>
                <th>user</th>
                <th>made</th>
                <th>expires</th>
                <th></th>
              </tr>
            </thead>
            <tbody>
              {good.map((token) => (
                <tr key={token.id}>
                  <td class="mono">{token.id}</td>
                  <td>{token.role}</td>
                  <td>{token.user}</td>
                  <td>{token.created_at && <Ago at={token.created_at} />}</td>
                  <td>{token.expires_at ? clock(token.expires_at) : "never"}</td>
                  <td class="right">
                    <ConfirmButton
                      label="Revoke"
                      question={`Take the token ${token.id} of ${token.user} out of use? Whoever uses it is cut off.`}
                      act={() => ask(`/v1/tokens/${part(token.id)}`, { method: "DELETE" }).then(refresh)}
                    />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </>
  );
}

function NewToken({ made }: { made: () => void }) {
  const [secret, setSecret] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);

  async function create(event: SubmitEvent) {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    try {
      const body = { role: form.get("role"), user: form.get("user") };
      const answer = await ask<{ token: string }>("/v1/tokens", { method: "POST", body });
      setSecret(answer.token);
      setProblem(null);
      made();
    } catch (error) {
      setProblem(error as Problem);
    }
  }

  return (
    <section class="card">
      <h2>A new one</h2>
      <form class="filters" onSubmit={create}>
        <select name="role" aria-label="Role">
          {ROLES.map((role) => (
            <option key={role}>{role}</option>
          ))}
        </select>
        <input name="user" aria-label="User" placeholder="user" required />
        <button class="main">Make it</button>
      </form>
      <Trouble problem={problem} />
      {secret && (
        <p class="note">
          Copy it now, it is shown only once: <code>{secret}</code>
        </p>
      )}
    </section>
  );
}
