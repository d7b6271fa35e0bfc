import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { logIn, settled, useBrowser, withAdmin, withPage } from "./browser";
import { readTable } from "./reading";
import { report } from "./traffic";
import { call, company } from "./world";

useBrowser();

describe("when the service can't be reached", () => {
  it("says so, keeps the last answers, and continues by itself", async () => {
    await withAdmin(
      `#/overview?range=7d&org=${company(1).org_id}`,
      async (page) => {
        await page.getByText("live", { exact: true }).waitFor();
        await settled(page);
        const before = await readTable(page, "Spend by app");
        await page.context().setOffline(true);
        await page.getByText("offline", { exact: true }).waitFor();
        await page.getByText("These are older numbers").first().waitFor();
        assert.deepEqual(await readTable(page, "Spend by app"), before);
        await page.context().setOffline(false);
        await page.getByText("live", { exact: true }).waitFor();
        await page.getByText("These are older numbers").first().waitFor({ state: "hidden" });
      },
      { mayComplain: /ERR_INTERNET_DISCONNECTED|Failed to load resource/ },
    );
  });

  it("leads back to the login, with the reason, when a key has ended", async () => {
    const made = await call("POST", "/api/v1/admin-keys", { name: "wall", role: "VIEWER" });
    assert.equal(made.status, 201);
    await withAdmin(
      "#/budgets",
      async (page) => {
        await settled(page);
        await call("DELETE", `/api/v1/admin-keys/${made.body.key_id}`);
        await report(company(1).org_id, company(1).apps[0] ?? ""); // which is worth a question
        await page.getByText("The key does not work any more").waitFor();
        await page.getByRole("heading", { name: "Who looks?" }).waitFor();
        assert.equal(await page.evaluate(() => sessionStorage.length), 0);
      },
      { mayComplain: /401/, key: made.body.key },
    );
  });

  it("shows what went wrong where it went wrong", async () => {
    await withPage(
      "#/budgets",
      async (page) => {
        await page.route("**/api/v1/budgets*", (route) =>
          route.fulfill({
            status: 503,
            headers: { "retry-after": "7" },
            contentType: "application/problem+json",
            body: JSON.stringify({
              code: "STORE_UNAVAILABLE",
              detail: "The store can't be reached.",
            }),
          }),
        );
        await logIn(page);
        const alert = page.getByRole("alert");
        await alert.getByText("The service can't answer").waitFor();
        assert.match(await alert.innerText(), /The store can't be reached\. Try again in 7 s\./);
        await page.unroute("**/api/v1/budgets*");
        await alert.getByRole("button", { name: "Try again" }).click();
        await page.getByRole("columnheader", { name: "Budget" }).waitFor();
      },
      { mayComplain: /503/ },
    );
  });
});
