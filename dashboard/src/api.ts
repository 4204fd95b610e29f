// Talking to the hub: JSON in, JSON out, and every refusal as one sentence that a person can act on.

export interface Mistake {
  where: string;
  what: string;
}

export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
    readonly mistakes: Mistake[] = [],
  ) {
    super(detail);
  }
}

/** Set by the session: the hub takes no change from a page that does not know it. */
let csrf = "";
export function setCsrf(token: string): void {
  csrf = token;
}

interface Asked {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  body?: unknown;
  signal?: AbortSignal;
}

export async function open(path: string, asked: Asked = {}): Promise<Response> {
  const method = asked.method ?? "GET";
  const headers: Record<string, string> = {};
  if (method !== "GET") headers["X-Ostler-CSRF"] = csrf;
  if (asked.body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers,
      credentials: "same-origin",
      body: asked.body === undefined ? undefined : JSON.stringify(asked.body),
      signal: asked.signal,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "The hub cannot be reached. Is it running? This page goes on by itself once it answers.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

export async function ask<T>(path: string, asked: Asked = {}): Promise<T> {
  const response = await open(path, asked);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** As the hub tells it, or the gateway, which tells it as OpenAI does. */
interface Told {
  detail?: string;
  title?: string;
  errors?: Mistake[];
  error?: { message?: string };
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const told = (await response.json()) as Told;
    return new Problem(response.status, told.detail ?? told.error?.message ?? told.title ?? response.statusText, told.errors ?? []);
  } catch {
    return new Problem(response.status, `The hub answered ${response.status} ${response.statusText}.`);
  }
}

export const part = encodeURIComponent;
