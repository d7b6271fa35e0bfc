/** Calls of one organisation or several, page by page. Pure. */
import type { UsageRecord } from "../api/wire";

/** A record with its organisation. */
export type Call = UsageRecord & { org_id: string };

export interface Calls {
  calls: Call[];
  /** Behind which record the earlier ones begin; only where one organisation is looked at. */
  next: string | undefined;
}

/**
 * The calls of several organisations as one list. It ends where the first page ends that is not the
 * last of its organisation: behind that, calls of that one would be missing among those of others.
 */
export function merged(pages: readonly Calls[]): Calls {
  const ends = pages
    .filter(({ next }) => next !== undefined)
    .map(({ calls }) => calls.at(-1)?.recorded_at ?? "9");
  const end = ends.length === 0 || pages.length === 1 ? "" : ends.reduce((a, b) => (a > b ? a : b));
  const calls = pages.flatMap((page) => page.calls).filter((one) => one.recorded_at >= end);
  if (pages.length > 1) calls.sort((a, b) => (a.recorded_at < b.recorded_at ? 1 : -1));
  return { calls, next: pages.find(({ next }) => next !== undefined)?.next };
}

/** Whether there is nothing to say about a call but that it counts. */
export function isPlain(call: UsageRecord): boolean {
  const isVoid = call.voided_at !== undefined || call.voids !== undefined;
  return call.status === "OK" && !call.price_estimated && !isVoid;
}
