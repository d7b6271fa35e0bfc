import assert from "node:assert/strict";
import { before, describe, it } from "node:test";

Object.assign(globalThis, { location: { hash: "" }, addEventListener: () => undefined });
let module: typeof import("./route");
before(async () => {
  module = await import("./route");
});

const ORG = "11111111-1111-4111-8111-111111111111";
const OTHER = "22222222-2222-4222-8222-222222222222";

describe("an address", () => {
  it("says the same again", () => {
    for (const hash of [
      "#/overview",
      `#/log?range=7d&org=${ORG}&app=web&label=premium&tag=team%3Ared+%26+blue`,
      "#/budgets?state=over",
      "#/audit?range=2026-01-01..2026-01-07&actor=x",
    ]) {
      assert.equal(module.hrefOf(module.parseRoute(hash)), hash);
    }
  });

  it("is never trusted: what makes no sense is left out", () => {
    const route = module.parseRoute(
      `#/nowhere?range=1..2&org=<script>&app=web&label=UPPER&tag=none&by=`,
    );
    assert.deepEqual(route, { page: "overview", filters: { range: "today" }, own: {} });
    assert.deepEqual(module.parseRoute(""), route);
  });
});

describe("a change", () => {
  it("keeps the filters on another page, and what is a page's own behind", () => {
    const at = module.parseRoute(`#/overview?range=7d&org=${ORG}&app=web&by=label`);
    assert.equal(
      module.hrefOf(module.changed(at, { page: "log" })),
      `#/log?range=7d&org=${ORG}&app=web`,
    );
    assert.equal(
      module.hrefOf(module.changed(at, { filters: { label: "premium" } })),
      `#/overview?range=7d&org=${ORG}&app=web&label=premium&by=label`,
    );
  });

  it("forgets the app with its organisation", () => {
    const at = module.parseRoute(`#/client?org=${ORG}&app=web`);
    assert.deepEqual(module.changed(at, { filters: { org: OTHER } }).filters, {
      range: "today",
      org: OTHER,
    });
    assert.equal(module.changed(at, { filters: { org: OTHER, app: "api" } }).filters.app, "api");
    assert.deepEqual(module.changed(at, { filters: { org: undefined } }).filters, {
      range: "today",
    });
  });
});
