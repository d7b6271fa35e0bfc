import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { settled, useBrowser, withAdmin } from "./browser";
import { appPath, ask, bearer, call, company, orgPath } from "./world";

useBrowser();

describe("what is changed from the page", () => {
  it("overrides a model with a reason, and the audit has it", async () => {
    const { org_id, apps } = company(1);
    const reason = "launch day & <night>";
    await withAdmin(`#/client?org=${org_id}&app=${apps[0]}`, async (page) => {
      await page.getByRole("button", { name: "Override model …" }).click();
      const dialog = page.getByRole("dialog");
      await dialog.getByLabel("Model").selectOption("economy");
      await dialog.getByLabel("Reason").fill(reason);
      await dialog.getByRole("button", { name: "Override" }).click();
      await dialog.waitFor({ state: "hidden" });
      await page.getByText("now economy").waitFor();
      const today = await ask(`${appPath(1, apps[0] ?? "")}/aggregates/today`);
      assert.equal(today.current_active_model, "economy");

      await page.getByRole("link", { name: "Audit" }).click();
      const row = page.getByRole("row").filter({ hasText: reason });
      await row.waitFor();
      assert.match(await row.innerText(), /override/);
      await row.getByRole("button", { name: /^show the changes/ }).click();
      await page.getByRole("cell", { name: "economy" }).first().waitFor();
      const { entries } = await ask(`/api/v1/audit?org_id=${org_id}`);
      assert.equal(entries[0].reason, reason);
    });
  });

  it("raises a budget to the micro-dollar, leaves the others, and the audit has it", async () => {
    const before = (await ask(orgPath(0))).configuration.budgets;
    await withAdmin(`#/budgets?org=${company(0).org_id}`, async (page) => {
      await settled(page);
      await page.getByRole("button", { name: /^Raise .*: premium-daily$/ }).click();
      const dialog = page.getByRole("dialog");
      const limit = dialog.getByLabel("New limit in dollars");
      await limit.fill("lots");
      await dialog.getByLabel("Reason").fill("a busy week");
      await dialog.getByRole("button", { name: "Set the limit" }).click();
      await dialog.getByRole("alert").getByText("in dollars").waitFor();
      await limit.fill("1,250.000001");
      await dialog.getByRole("button", { name: "Set the limit" }).click();
      await dialog.waitFor({ state: "hidden" });
      await page.locator('data[value="1250000001"]').first().waitFor();
    });
    const after = (await ask(orgPath(0))).configuration.budgets;
    const expected = before.map((one: any) =>
      one.name === "premium-daily" ? { ...one, limit_usd_micros: 1_250_000_001 } : one,
    );
    assert.deepEqual(after, expected);
    const { entries } = await ask(`/api/v1/audit?org_id=${company(0).org_id}`);
    assert.equal(entries[0].reason, "a busy week");
  });

  it("offers nothing that the key's role may not do", async () => {
    const made = await call("POST", "/api/v1/admin-keys", { name: "viewer", role: "VIEWER" });
    await withAdmin(
      `#/client?org=${company(0).org_id}`,
      async (page) => {
        await settled(page);
        const buttons = page.getByRole("button", { name: /Override|Freeze|Raise|^End/ });
        assert.equal(await buttons.count(), 0);
      },
      { key: made.body.key },
    );
  });
});

describe("why a call was denied", () => {
  it("is a tree of all that stood in its way, as soon as it happens", async () => {
    const { org_id, apps } = company(0);
    const app = apps[0] ?? "";
    await withAdmin(`#/denials?org=${org_id}&app=${app}`, async (page) => {
      await page.getByText("live", { exact: true }).waitFor();
      await settled(page);
      const wanted = { model: "premium", input_tokens: 500_000, max_output_tokens: 100_000 };
      const headers = await bearer(`org-${org_id}-app-${app}`);
      const denied = await call("POST", `${appPath(0, app)}/authorizations`, wanted, headers);
      assert.equal(denied.status, 429);
      const row = page.getByRole("row").filter({ hasText: "premium" }).first();
      await row.getByRole("button", { name: /^show why/ }).click();
      const tree = page.getByRole("list", { name: "Why premium was denied" });
      await tree.waitFor();
      const text = await tree.innerText();
      for (const one of denied.body.denied_by) {
        assert.ok(text.includes(one.name), one.name);
        const exact = tree.locator(`data[value="${one.needed}"]`);
        assert.ok((await exact.count()) > 0, `${one.needed}`);
      }
    });
  });
});
