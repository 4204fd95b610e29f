// Whether something is on the screen, or will be after a little scrolling. One observer for the whole page.

import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";

const heard = new WeakMap<Element, (near: boolean) => void>();
const observer = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) heard.get(entry.target)?.(entry.isIntersecting);
  },
  { rootMargin: "500px 0px" },
);

export function useNear(element: RefObject<Element | null>): boolean {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const shown = element.current;
    if (!shown) return;
    heard.set(shown, setNear);
    observer.observe(shown);
    return () => observer.unobserve(shown);
  }, []);
  return near;
}
