import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { type Call, type Calls, isPlain, merged } from "./calls";

function page(next: string | undefined, ...times: string[]): Calls {
  return { calls: times.map((recorded_at) => ({ recorded_at })) as Calls["calls"], next };
}

describe("calls of several organisations", () => {
  it("are one list, the newest first", () => {
    const { calls, next } = merged([page(undefined, "5", "2"), page(undefined, "4", "1")]);
    assert.deepEqual(
      calls.map((one) => one.recorded_at),
      ["5", "4", "2", "1"],
    );
    assert.equal(next, undefined);
  });

  it("end where one of them has more that was not read", () => {
    const { calls, next } = merged([page("x", "9", "6"), page(undefined, "8", "7", "3")]);
    assert.deepEqual(
      calls.map((one) => one.recorded_at),
      ["9", "8", "7", "6"],
    );
    assert.equal(next, "x");
  });
});

describe("a call", () => {
  const ok = { status: "OK", price_estimated: false } as Call;

  it("is plain if it counts at known prices", () => {
    assert.ok(isPlain(ok));
    assert.ok(!isPlain({ ...ok, status: "ERROR" }));
    assert.ok(!isPlain({ ...ok, price_estimated: true }));
  });

  it("is not plain if it is voided, or a correction", () => {
    assert.ok(!isPlain({ ...ok, voided_at: "2026-01-09T12:00:00Z" }));
    assert.ok(!isPlain({ ...ok, voids: "01928f7c-12ab-7c3d-8e4f-0123456789ab" }));
  });
});
