import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { customEnds, isRange, spanOf } from "./range";

/** Whether a value has these fields; it may have others. */
function assertHas(value: object, fields: object): void {
  assert.deepEqual({ ...value, ...fields }, value);
}

const NOW = Date.parse("2026-01-23T03:30:00Z");

describe("spanOf", () => {
  it("has the days of the zone", () => {
    assertHas(spanOf("today", "UTC", NOW), { from: "2026-01-23", to: "2026-01-23" });
    assertHas(spanOf("today", "America/New_York", NOW), { from: "2026-01-22" });
    assertHas(spanOf("month", "America/New_York", NOW), {
      from: "2026-01-01",
      to: "2026-01-22",
      by: "day",
    });
    assertHas(spanOf("7d", "UTC", NOW), { from: "2026-01-17", to: "2026-01-23" });
  });

  it("has full hours that include the present one", () => {
    assertHas(spanOf("24h", "Asia/Kolkata", NOW), {
      from: "2026-01-22T04:00:00Z",
      to: "2026-01-23T04:00:00Z",
      by: "hour",
    });
  });

  it("has hours where days differ from one organisation to the next", () => {
    assert.deepEqual(spanOf("today", null, NOW), {
      from: "2026-01-23T00:00:00Z",
      to: "2026-01-23T04:00:00Z",
      by: "hour",
      title: "today (UTC)",
    });
    assertHas(spanOf("month", null, NOW), {
      from: "2026-01-01T00:00:00Z",
      to: "2026-01-23T04:00:00Z",
      by: "day",
    });
  });

  it("takes two dates, or two hours", () => {
    assert.equal(spanOf("2026-01-01..2026-01-03", "UTC", NOW).by, "hour");
    assert.equal(spanOf("2026-01-01..2026-01-04", "UTC", NOW).by, "day");
    assert.equal(
      spanOf("2026-01-01T05:00:00Z..2026-01-01T06:00:00Z", "UTC", NOW).title,
      "the hour from 2026-01-01 05:00 UTC",
    );
  });

  it("takes what is no range for today", () => {
    for (const text of [
      "",
      "2026-01-02..2026-01-01",
      "2026-02-30..2026-03-01",
      "a..b",
      "x..y..z",
    ]) {
      assert.equal(customEnds(text), null);
      assert.equal(isRange(text), false);
      assert.equal(spanOf(text, "UTC", NOW).from, "2026-01-23");
    }
    assert.equal(customEnds("2020-01-01..2026-01-01"), null);
  });
});
