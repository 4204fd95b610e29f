// What the hub's documents look like, as far as the pages read them.

export type JobState =
  | "pending"
  | "assigned"
  | "running"
  | "orphaned"
  | "succeeded"
  | "failed"
  | "cancelled"
  | "unschedulable";

export const LIVE: JobState[] = ["pending", "assigned", "running", "orphaned"];

export interface Attempt {
  attempt: string;
  worker: string;
  state: string;
  reason: string;
  devices: number[];
  why: string;
  started_at: string | null;
  finished_at: string | null;
  run_s: number | null;
  peak_memory_mib: number | null;
  peak_vram_mib: number | null;
}

export interface Job {
  id: string;
  name: string;
  state: JobState;
  reason: string;
  exit_code: number | null;
  worker: string | null;
  user_id: string;
  attempt: string | null;
  attempts?: Attempt[];
  submitted_at: string;
  started_at: string | null;
  finished_at: string | null;
  artifact_id: string | null;
  metrics: Record<string, number>;
  counts?: Partial<Record<JobState, number>>;
  health?: string | null;
  spec: Record<string, unknown>;
}

export interface Device {
  index: number;
  uuid: string;
  name: string;
  vram_gb: number;
  vram_free_gb: number;
  held_by: { task_id: string; vram_gb: number | null }[];
}

export interface Worker {
  id: string;
  backend: string;
  gpu_count: number;
  vram_gb: number;
  cpu_count: number;
  memory_gb: number;
  status: "ready" | "busy" | "offline";
  active_jobs: number;
  total_slots: number;
  last_contact: string | null;
  draining: boolean;
  cooling: boolean;
  labels: Record<string, string>;
  free: { gpus: number; cores: number; memory_gb: number };
  devices: Device[];
  tasks: { task_id: string; attempt: string; state: string }[];
  hostname?: string;
}

export interface Status {
  jobs: Record<string, number>;
  ended: Record<string, number>;
  oldest_pending: string | null;
  workers: { ready: number; busy: number; offline: number };
  gpus: { total: number; held: number };
  cores: { total: number; held: number };
  memory_gb: { total: number; held: number };
  hub: { version: string; started_at: string; role: string };
}

export interface Why {
  state: string;
  summary: string;
  blockers: { axis: string; reason: string; workers: string[] }[];
  workers: { id: string; fits: boolean; reasons: string[] }[];
  change: string | null;
  estimate: { starts_at?: string | null; summary?: string } | string | null;
}

/** One line of `/v1/events`. */
export interface FeedLine {
  seq: number;
  at: string;
  kind: string;
  subject: string;
  state?: string;
  user?: string;
  name?: string;
  worker?: string;
  task?: string;
  reason?: string;
}
