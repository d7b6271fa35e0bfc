import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { parseUsd, percent, usdExact, usdInput, usdParts, usdShort } from "./money";

describe("usdParts", () => {
  it("shows every digit", () => {
    assert.deepEqual(usdParts(1_234_567_890), { dollars: "$1,234.56", belowCent: "7890" });
    assert.deepEqual(usdParts(0), { dollars: "$0.00", belowCent: "0000" });
    assert.equal(usdExact(-1), "−$0.000001");
    assert.equal(usdExact(9007199254740993n), "$9,007,199,254.740993");
    assert.equal(usdExact(-1_000_000_000_000), "−$1,000,000.000000");
  });
});

describe("usdShort", () => {
  it("never looks better than it is", () => {
    assert.equal(usdShort(1, "up"), "$0.01");
    assert.equal(usdShort(1, "down"), "$0.00");
    assert.equal(usdShort(10_000, "up"), "$0.01");
    assert.equal(usdShort(-1, "down"), "−$0.01");
    assert.equal(usdShort(-1, "up"), "$0.00");
    assert.equal(usdShort(999_999_999, "up"), "$1,000.00");
    assert.equal(usdShort(1_234_000_001, "up"), "$1,235");
    assert.equal(usdShort(1_234_999_999, "down"), "$1,234");
  });
});

describe("percent", () => {
  it("never looks better than it is", () => {
    assert.equal(percent(999_501, 1_000_000, "up"), "100.0 %");
    assert.equal(percent(999_499, 1_000_000, "down"), "99.9 %");
    assert.equal(percent(1, 1_000_000, "up"), "0.1 %");
    assert.equal(percent(1, 3, "up"), "33.4 %");
    assert.equal(percent(1, 3, "down"), "33.3 %");
    assert.equal(percent(-1, 1000, "down"), "−0.1 %");
    assert.equal(percent(12_345, 1, "up"), "1,234,500.0 %");
  });

  it("does not divide by nothing", () => {
    assert.equal(percent(0, 0, "up"), "–");
    assert.equal(percent(1, 0, "up"), "over");
  });
});

describe("what a person types", () => {
  it("is dollars with at most six digits below one", () => {
    assert.equal(parseUsd("1,250.5"), 1_250_500_000n);
    assert.equal(parseUsd(" $0.000001 "), 1n);
    for (const text of ["", "-1", "1.2345678", "1,25", "abc", "1e3", "."]) {
      assert.equal(parseUsd(text), null);
    }
  });

  it("is shown as it can be typed", () => {
    assert.equal(usdInput(1_250_500_000), "1250.50");
    assert.equal(usdInput(1), "0.000001");
    assert.equal(parseUsd(usdInput(987_654_321_000_001n)), 987_654_321_000_001n);
  });
});
