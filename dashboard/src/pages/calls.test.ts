import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { type Calls, merged } from "./calls";

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
