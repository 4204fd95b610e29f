// Who did what to which object, newest first.

import { part } from "../api";
import { clock } from "../format";
import { usePaged } from "../paging";
import { DraftInput } from "../parts/draft";
import { Empty, Loading, Trouble } from "../parts/notes";
import { Scroll } from "../parts/scroll";
import { go, link, place } from "../router";

interface Row {
  seq: number;
  at: number;
  actor: string;
  user: string;
  role: string;
  source: string;
  action: string;
  object: string;
  outcome: string;
  detail: string;
}

interface Listing {
  rows: Row[];
  next: string | null;
}

export function Audit() {
  const filters = { actor: place.value.query.get("actor") ?? "", object: place.value.query.get("object") ?? "" };
  const path = `/v1/audit?limit=100&actor=${part(filters.actor)}&object=${part(filters.object)}`;
  const { items: rows, problem, more, busy, load } = usePaged(path, (page: Listing) => page.rows, (row) => row.seq, {
    concerns: () => true,
    everyMs: 30_000,
  });
  const set = (key: string, value: string) => go("audit", "", { ...filters, [key]: value });
  return (
    <>
      <div class="head">
        <h1>Audit</h1>
        <div class="filters">
          {(["actor", "object"] as const).map((key) => (
            <DraftInput
              key={key}
              type="search"
              label={key}
              placeholder={key}
              value={filters[key]}
              commit={(text) => set(key, text)}
            />
          ))}
        </div>
        <span class="dim">
          <code>ostler audit verify</code> checks the chain
        </span>
      </div>
      <Trouble problem={problem} />
      {!rows && !problem && <Loading />}
      {rows?.length === 0 && (
        <Empty title="Nothing was found">
          <a href={link("audit")}>Show all that was done</a>
        </Empty>
      )}
      {rows && rows.length > 0 && (
        <Scroll label="Audit">
          <table>
            <thead>
              <tr>
                <th>when</th>
                <th>who</th>
                <th>from</th>
                <th>did</th>
                <th>to</th>
                <th>outcome</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.seq}>
                  <td class="dim">{clock(new Date(row.at * 1000).toISOString())}</td>
                  <td>
                    {row.user || row.actor} <span class="dim">{row.role}</span>
                  </td>
                  <td class="dim">{row.source}</td>
                  <td>{row.action}</td>
                  <td class="mono">{row.object}</td>
                  <td>
                    {row.outcome} <span class="dim">{row.detail}</span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {more && (
        <button type="button" disabled={busy} onClick={load}>
          Show older ones
        </button>
      )}
    </>
  );
}
