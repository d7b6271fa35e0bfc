import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { spanOf } from "../state/range";
import { bucketsOf, rangeOf, stackBy, stackFields, withRows } from "./series";

const NOW = Date.parse("2026-01-23T07:30:00Z");

describe("buckets", () => {
  it("are the hours of the zone's day up to now", () => {
    const hours = bucketsOf(spanOf("today", "America/New_York", NOW), "America/New_York", NOW);
    assert.deepEqual(
      hours.map(({ key }) => key),
      ["2026-01-23T05:00:00Z", "2026-01-23T06:00:00Z", "2026-01-23T07:00:00Z"],
    );
    const kolkata = bucketsOf(spanOf("today", "Asia/Kolkata", NOW), "Asia/Kolkata", NOW);
    assert.equal(kolkata[0]?.key, "2026-01-22T18:00:00Z");
    assert.equal(bucketsOf(spanOf("24h", "UTC", NOW), "UTC", NOW).length, 24);
  });

  it("are days, also those in which nothing was spent", () => {
    const days = bucketsOf(spanOf("7d", "UTC", NOW), "UTC", NOW);
    assert.deepEqual(days.map(({ key }) => key).slice(0, 2), ["2026-01-17", "2026-01-18"]);
    assert.equal(days.length, 7);
  });

  it("include those that only rows know", () => {
    const days = bucketsOf(spanOf("7d", null, NOW), "UTC", NOW);
    const rows = [{ day: "2026-01-16" }, { day: "2026-01-23" }, { day: "2026-01-24" }];
    const all = withRows(days, rows, "day").map(({ key }) => key);
    assert.deepEqual([all[0], all.at(-1), all.length], ["2026-01-16", "2026-01-24", 9]);
  });

  it("say which range they are", () => {
    const [hour] = bucketsOf(spanOf("24h", "UTC", NOW), "UTC", NOW);
    const [day] = bucketsOf(spanOf("7d", "UTC", NOW), "UTC", NOW);
    if (hour === undefined || day === undefined) throw new Error("there are none");
    assert.equal(rangeOf(hour, "hour"), "2026-01-22T08:00:00Z..2026-01-22T09:00:00Z");
    assert.equal(rangeOf(day, "day"), "2026-01-17..2026-01-17");
  });
});

describe("a stack", () => {
  const buckets = bucketsOf(spanOf("24h", "UTC", NOW), "UTC", NOW).slice(0, 2);
  const [first, second] = buckets.map(({ key }) => key) as [string, string];

  it("has every number as the answer has it, and nothing where there is no row", () => {
    const rows = [
      { hour: first, label: "premium", cost_usd_micros: 9007199254740993n },
      { hour: second, label: "economy", cost_usd_micros: 5 },
      { hour: "2020-01-01T00:00:00Z", label: "economy", cost_usd_micros: 7 },
    ];
    const names = { bucket: "hour", group: "label", value: "cost_usd_micros" } as const;
    assert.deepEqual(stackBy(rows, buckets, names).series, [
      { name: "economy", values: [null, 5] },
      { name: "premium", values: [9007199254740993n, null] },
    ]);
  });

  it("has a series for each field", () => {
    const rows = [{ hour: second, input_tokens: 3, output_tokens: 4 }];
    const fields = [
      ["input", "input_tokens"],
      ["output", "output_tokens"],
    ] as const;
    assert.deepEqual(stackFields(rows, buckets, "hour", fields).series, [
      { name: "input", values: [null, 3] },
      { name: "output", values: [null, 4] },
    ]);
  });
});
