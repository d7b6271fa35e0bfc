import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { addDays, clockTime, dateIn, daysBetween, duration, isDate, startOfDay } from "./time";

const at = (text: string): number => Date.parse(text);

describe("days of a zone", () => {
  it("begin at its own midnight", () => {
    assert.equal(dateIn("America/New_York", at("2026-01-23T04:59:59Z")), "2026-01-22");
    assert.equal(dateIn("America/New_York", at("2026-01-23T05:00:00Z")), "2026-01-23");
    assert.equal(startOfDay("America/New_York", "2026-01-23"), at("2026-01-23T05:00:00Z"));
    assert.equal(startOfDay("Asia/Kolkata", "2026-01-23"), at("2026-01-22T18:30:00Z"));
    assert.equal(startOfDay("UTC", "2026-01-23"), at("2026-01-23T00:00:00Z"));
  });

  it("are right when clocks change, and where midnight does not exist", () => {
    assert.equal(startOfDay("Europe/Berlin", "2026-03-29"), at("2026-03-28T23:00:00Z"));
    assert.equal(startOfDay("Europe/Berlin", "2026-03-30"), at("2026-03-29T22:00:00Z"));
    assert.equal(startOfDay("America/New_York", "2026-11-01"), at("2026-11-01T04:00:00Z"));
    const santiago = startOfDay("America/Santiago", "2026-09-06"); // 24:00 is 01:00 there
    assert.equal(dateIn("America/Santiago", santiago), "2026-09-06");
    assert.equal(dateIn("America/Santiago", santiago - 1), "2026-09-05");
  });

  it("are counted with both ends", () => {
    assert.equal(daysBetween("2026-02-27", "2026-03-01"), 3);
    assert.equal(addDays("2026-03-01", -1), "2026-02-28");
    assert.equal(isDate("2026-02-29"), false);
    assert.equal(isDate("2028-02-29"), true);
    assert.equal(isDate("2026-2-9"), false);
  });
});

describe("text", () => {
  it("has the two largest units of a duration", () => {
    assert.equal(duration(0), "0 s");
    assert.equal(duration(59_999), "59 s");
    assert.equal(duration(60_000), "1 min");
    assert.equal(duration(3_600_000 + 5 * 60_000 + 3000), "1 h 5 min");
    assert.equal(duration(3 * 86_400_000 + 60_000), "3 d");
  });

  it("has the clock of the zone", () => {
    assert.equal(clockTime("Europe/Berlin", at("2026-01-23T00:05:09Z")), "01:05:09");
  });
});
