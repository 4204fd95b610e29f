// What a job has left: each artifact with its size, and where to get it.

import { part } from "../api";
import { bytes, clock } from "../format";
import { useResource } from "../live";
import type { FeedLine } from "../shapes";
import { Trouble } from "./notes";
import { Scroll } from "./scroll";

interface Artifact {
  id: string;
  size: number;
  created_at: string;
  compressed: boolean;
  /** The same bytes may have been left by several. */
  jobs: { task: string }[];
}

export function Artifacts({ job, concerns }: { job: string; concerns: (line: FeedLine) => boolean }) {
  const { data, problem } = useResource<{ artifacts: Artifact[]; next: string | null }>(`/v1/artifacts?limit=50&job=${part(job)}`, { concerns, leastMs: 2000 });
  if (!data?.artifacts.length) return problem && problem.status !== 404 ? <Trouble problem={problem} /> : null;
  return (
    <Scroll label="Artifacts">
      <h2>Artifacts</h2>
      <table>
        <thead>
          <tr>
            <th>artifact</th>
            <th>of</th>
            <th class="right">size</th>
            <th>made</th>
            <th></th>
          </tr>
        </thead>
        <tbody>
          {data.artifacts.map((artifact) => (
            <tr key={artifact.id}>
              <td class="mono" title={artifact.id}>
                {artifact.id.slice(0, 16)}…
              </td>
              <td>
                {artifact.jobs[0]?.task}
                {artifact.jobs.length > 1 && <span class="dim"> and {artifact.jobs.length - 1} more</span>}
              </td>
              <td class="right">{bytes(artifact.size)}</td>
              <td>{clock(artifact.created_at)}</td>
              <td>
                <a href={`/v1/model/${artifact.id}`} download={`${artifact.id.slice(0, 16)}.tar${artifact.compressed ? ".zst" : ""}`}>
                  Download
                </a>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {data.next && (
        <p class="dim">
          These are the newest; <code>ostler artifacts list --job {job}</code> lists all.
        </p>
      )}
    </Scroll>
  );
}
