import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { hasTag, isMoney, readWhy } from "./why";

describe("why a call was denied", () => {
  it("has everything that stood in the way", () => {
    const why = readWhy({
      detail: "the app's quota …",
      denied_by: [
        {
          kind: "QUOTA",
          name: "quota-premium",
          scope: "APP",
          label: "premium",
          needed: 1_760_000,
          remaining: 1_296_000,
          resets_at: "2026-01-24T05:00:00Z",
        },
        { kind: "LIMIT", name: "rpm", scope: "ORG", needed: 1, remaining: 0, retry_after_ms: 900 },
        { kind: "BUDGET", name: "monthly", scope: "ORG", needed: 2, remaining: 1, never: true },
      ],
      considered: [{ label: "premium", outcome: "SKIPPED", because: "the quota" }],
      tags: { team: "red" },
    });
    assert.deepEqual(
      why.obstacles.map((one) => [one.kind, one.name, one.needed, one.isNever, isMoney(one)]),
      [
        ["QUOTA", "quota-premium", 1_760_000, false, true],
        ["LIMIT", "rpm", 1, false, false],
        ["BUDGET", "monthly", 2, true, true],
      ],
    );
    assert.deepEqual(why.considered, [
      { label: "premium", outcome: "SKIPPED", because: "the quota" },
    ]);
    assert.deepEqual(why.tags, [["team", "red"]]);
  });

  it("reads the other shapes", () => {
    const violations = [{ limit: "tpm", requested: 10, available: -3, retry_after_ms: 5 }];
    const [limit] = readWhy({ violations }).obstacles;
    assert.deepEqual([limit?.name, limit?.needed, limit?.remaining], ["tpm", 10, -3]);
    const spent = readWhy({ models: { premium: { quota_pct: 100.4 } } });
    assert.deepEqual(spent.models, [{ label: "premium", quotaPct: "100.4" }]);
  });

  it("matches a tag by its value, and an empty value if the tag is missing", () => {
    const wants = ["team:red", "team:", "team:blue", "url:a:b", "url:"];
    const fitting = (tags: Record<string, string>): string[] =>
      wants.filter((wanted) => hasTag(readWhy({ tags }), wanted));
    assert.deepEqual(fitting({ team: "red" }), ["team:red", "url:"]);
    assert.deepEqual(fitting({ team: "", url: "a:b" }), ["team:", "url:a:b"]);
    assert.deepEqual(fitting({}), ["team:", "url:"]);
  });

  it("makes nothing up", () => {
    const empty = readWhy({ denied_by: "x", considered: [null, 1], models: 3, tags: null });
    assert.deepEqual(empty, {
      detail: null,
      obstacles: [],
      considered: [],
      models: [],
      tags: [],
      leftOut: [],
    });
    assert.equal(readWhy({ denied_by: [{ needed: "5" }] }).obstacles[0]?.needed, null);
  });
});
