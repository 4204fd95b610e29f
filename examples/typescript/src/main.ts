// Runs a command on the fleet and prints its log; the exit code is the job's.
//
//   node build/main.js python -c 'print(6 * 7)'
//
// src/api.ts is made from the hub's own description: docs/other-languages.md.

import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Job = components["schemas"]["Job"];
type Problem = components["schemas"]["Problem"];

const baseUrl = process.env.OSTLER_HUB ?? "http://127.0.0.1:7600";
const hub = createClient<paths>({
  baseUrl,
  headers: { Authorization: `Bearer ${process.env.OSTLER_TOKEN ?? ""}` },
});

class Refused extends Error {
  constructor(readonly problem: Problem) {
    super([problem.detail, ...(problem.errors ?? []).map((one) => `  ${one.where}: ${one.what}`)].join("\n"));
  }
}

async function submit(command: string[]): Promise<string> {
  const { data, error } = await hub.POST("/v1/jobs", {
    body: { command, name: "from-typescript" },
    params: { header: { "Idempotency-Key": crypto.randomUUID() } },
  });
  if (error) throw new Refused(error);
  if (!("id" in data)) throw new Error("one spec gives one job");
  for (const note of data.notes) console.error(note);
  return data.id;
}

async function ended(id: string): Promise<Job> {
  for (;;) {
    // The hub answers as soon as the job has ended, and after twenty seconds in any case.
    const { data, error } = await hub.GET("/v1/jobs/{id}", { params: { path: { id }, query: { wait: 20 } } });
    if (error) throw new Refused(error);
    if (data.finished_at !== null) return data;
  }
}

async function log(id: string): Promise<string> {
  const { data, error } = await hub.GET("/v1/jobs/{id}/logs", { params: { path: { id } }, parseAs: "text" });
  if (error) throw new Refused(error);
  return data ?? "";
}

try {
  const id = await submit(process.argv.slice(2));
  const job = await ended(id);
  process.stdout.write(await log(id));
  console.error(`${id} ${job.state} on ${job.worker ?? "no worker"}${job.reason ? `: ${job.reason}` : ""}`);
  process.exitCode = job.state === "succeeded" ? 0 : (job.exit_code ?? 1);
} catch (error) {
  if (error instanceof Refused) {
    console.error(error.message);
    process.exitCode = error.problem.status === 401 ? 4 : 2;
  } else if (error instanceof TypeError) {
    console.error(`no hub answers at ${baseUrl}: ${error.cause ?? error.message}`); // what fetch throws then
    process.exitCode = 3;
  } else {
    throw error;
  }
}
