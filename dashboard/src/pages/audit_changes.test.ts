import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { changesOf } from "./audit_changes";

describe("a change", () => {
  it("is shown member by member", () => {
    const before = { quotas: { premium: 1, economy: 2 }, org_name: "A", tag_keys: ["x"] };
    const after = { quotas: { premium: 5, economy: 2 }, tag_keys: ["x", "y"], frozen: true };
    assert.deepEqual(changesOf(before, after), [
      { path: "quotas.premium", before: "1", after: "5" },
      { path: "org_name", before: "A", after: null },
      { path: "tag_keys", before: '["x"]', after: '["x","y"]' },
      { path: "frozen", before: null, after: "true" },
    ]);
  });

  it("is everything of one side, if there is no other", () => {
    assert.deepEqual(changesOf(undefined, { reason: "leak" }), [
      { path: "reason", before: null, after: "leak" },
    ]);
    assert.deepEqual(changesOf(undefined, undefined), []);
  });
});
