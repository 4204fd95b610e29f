// Who looks at this page. The token is sent once and never kept here: what stays is a cookie that no script can read.

import { signal } from "@preact/signals";
import { ask, Problem, setCsrf } from "./api";

export interface Session {
  user: string;
  role: string;
  csrf: string;
}

/** undefined: not asked yet; null: nobody. */
export const session = signal<Session | null | undefined>(undefined);

export const mayAct = (): boolean => session.value?.role === "operator" || session.value?.role === "user";
export const isOperator = (): boolean => session.value?.role === "operator";

function enter(found: Session | null): void {
  setCsrf(found?.csrf ?? "");
  session.value = found;
}

export async function recall(): Promise<void> {
  try {
    enter(await ask<Session>("/v1/session"));
  } catch (error) {
    if (error instanceof Problem && error.status === 401) enter(null);
    else throw error;
  }
}

export async function logIn(token: string): Promise<void> {
  enter(await ask<Session>("/v1/session", { method: "POST", body: { token } }));
}

export async function logOut(): Promise<void> {
  await ask("/v1/session", { method: "DELETE" }).catch(() => undefined);
  enter(null);
}

/** Called when the hub says that nobody is logged in any more. */
export function expelled(): void {
  enter(null);
}
