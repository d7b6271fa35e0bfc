import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { FlipAnswer } from "../api/wire";
import { lanesOf } from "./timeline";

const at = (hours: number): string => new Date(hours * 3_600_000).toISOString();
const SPAN = { fromMs: 0, toMs: 30 * 3_600_000 };

function flip(hours: number, from: string, to: string | null, more: Partial<FlipAnswer> = {}) {
  const reason = "QUOTA_EXCEEDED";
  const made: FlipAnswer = {
    org_id: "o",
    app_id: null,
    at: at(hours),
    reason,
    from_label: from,
    to_label: to,
    given_up: [],
    until: at(24),
    ...more,
  };
  return made;
}

function drawn(flips: FlipAnswer[]): unknown[] {
  return lanesOf(flips, "premium", SPAN).map(({ app, segments }) => [
    app,
    ...segments.map(({ fromMs, toMs, label }) => `${fromMs / 36e5}-${toMs / 36e5} ${label}`),
  ]);
}

describe("a timeline of flips", () => {
  it("goes down the order, and back with the next day", () => {
    assert.deepEqual(drawn([flip(20, "standard", "economy"), flip(10, "premium", "standard")]), [
      [null, "0-10 premium", "10-20 standard", "20-24 economy", "24-30 premium"],
    ]);
  });

  it("ends an override that was cleared", () => {
    const set = flip(2, "premium", "economy", { reason: "MANUAL_OVERRIDE" });
    const cleared = flip(5, "economy", null, { reason: "OVERRIDE_CLEARED" });
    assert.deepEqual(drawn([set, cleared]), [[null, "0-2 premium", "2-5 economy", "5-30 premium"]]);
  });

  it("goes back to what the quotas have decided when an override was cleared", () => {
    const set = flip(12, "standard", "economy", { reason: "MANUAL_OVERRIDE" });
    const cleared = flip(15, "economy", null, { reason: "OVERRIDE_CLEARED" });
    assert.deepEqual(drawn([flip(10, "premium", "standard"), set, cleared]), [
      [null, "0-10 premium", "10-12 standard", "12-15 economy", "15-24 standard", "24-30 premium"],
    ]);
  });

  it("goes back up when a quota was raised", () => {
    const raised = flip(12, "standard", "premium", { reason: "QUOTA_RAISED" });
    assert.deepEqual(drawn([flip(10, "premium", "standard"), raised]), [
      [null, "0-10 premium", "10-12 standard", "12-24 premium", "24-30 premium"],
    ]);
  });

  it("has a lane for each app, and none where nothing happened", () => {
    assert.deepEqual(drawn([]), []);
    assert.deepEqual(drawn([flip(26, "premium", "standard", { app_id: "web", until: at(48) })]), [
      ["web", "0-26 premium", "26-30 standard"],
    ]);
  });
});
