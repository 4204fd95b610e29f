// Where one is, in the part of the address behind `#`: so every view is a link, and the hub serves one page only.

import { signal } from "@preact/signals";

export interface Place {
  page: string;
  id: string;
  query: URLSearchParams;
}

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/");
  return { page: page || "fleet", id: rest.map(decoded).join("/"), query: new URLSearchParams(query) };
}

/** An address that was cut or typed may end amid an escape. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const place = signal<Place>(read());
addEventListener("hashchange", () => (place.value = read()));

export function link(page: string, id = "", query: Record<string, string> = {}): string {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  return `#/${page}${id ? `/${encodeURIComponent(id)}` : ""}${asked ? `?${asked}` : ""}`;
}

export function go(page: string, id = "", query: Record<string, string> = {}): void {
  location.hash = link(page, id, query);
}
