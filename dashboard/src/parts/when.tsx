// Times that pass while one looks. Each is a part of its own: what stands around it is not drawn again with it.

import { ago, between } from "../format";

type At = string | null | undefined;

export function Ago({ at }: { at: At }) {
  return <>{ago(at)}</>;
}

export function Took({ from, to }: { from: At; to: At }) {
  return <>{between(from, to)}</>;
}
