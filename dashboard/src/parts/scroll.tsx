// A card whose contents may be wider than the screen: whoever has only a keyboard can move it too.

import type { ComponentChildren } from "preact";

export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <section class="card scroll" aria-label={label} tabIndex={0}>
      {children}
    </section>
  );
}
