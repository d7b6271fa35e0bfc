/** Which label was recommended when, from the flips of a stretch of time. Pure. */
import type { FlipAnswer } from "../api/wire";

/** A stretch in which one label was recommended. */
export interface Segment {
  fromMs: number;
  toMs: number;
  label: string;
  /** Why it was this one; `null` is as the order of models has it. */
  reason: FlipAnswer["reason"] | null;
}

/** The segments of one scope: its quotas or its override decide together. */
export interface Lane {
  /** The app; `null` is the whole organisation. */
  app: string | null;
  segments: Segment[];
}

/** The lanes of a stretch, those of the organisation first. */
export function lanesOf(
  flips: readonly FlipAnswer[],
  first: string,
  span: { fromMs: number; toMs: number },
): Lane[] {
  const apps = [...new Set(flips.map(({ app_id }) => app_id))];
  apps.sort((one, other) => (one ?? "").localeCompare(other ?? ""));
  return apps.map((app) => ({
    app,
    segments: segmentsOf(
      flips.filter(({ app_id }) => app_id === app),
      first,
      span,
    ),
  }));
}

/**
 * A fallback or override ends with its day; then the first label is recommended. After an override is
 * cleared, quotas decide again.
 */
function segmentsOf(
  flips: readonly FlipAnswer[],
  first: string,
  { fromMs, toMs }: { fromMs: number; toMs: number },
): Segment[] {
  const sorted = [...flips].sort((one, other) => Date.parse(one.at) - Date.parse(other.at));
  const segments: Segment[] = [];
  let at = fromMs;
  let state: Omit<Segment, "fromMs" | "toMs"> & { untilMs: number } = {
    label: sorted[0]?.from_label ?? first,
    reason: null,
    untilMs: Number.POSITIVE_INFINITY,
  };
  const ordered: typeof state = { label: first, reason: null, untilMs: Number.POSITIVE_INFINITY };
  let byQuota = ordered;
  const advance = (to: number): void => {
    const end = Math.min(to, toMs);
    if (end > at)
      segments.push({ fromMs: at, toMs: end, label: state.label, reason: state.reason });
    at = Math.max(at, end);
  };
  for (const flip of sorted) {
    const flipMs = Date.parse(flip.at);
    if (state.untilMs <= flipMs) {
      advance(state.untilMs);
      state = { label: flip.from_label ?? first, reason: null, untilMs: Number.POSITIVE_INFINITY };
    }
    advance(flipMs);
    if (flip.to_label === null) {
      state = byQuota.untilMs > flipMs ? byQuota : ordered;
    } else {
      state = { label: flip.to_label, reason: flip.reason, untilMs: Date.parse(flip.until) };
      if (flip.reason !== "MANUAL_OVERRIDE") byQuota = state;
    }
  }
  if (state.untilMs < toMs) {
    advance(state.untilMs);
    state = ordered;
  }
  advance(toMs);
  return segments;
}
