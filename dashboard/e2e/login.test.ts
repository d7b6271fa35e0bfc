import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { logIn, logInAs, settled, useBrowser, violations, withPage } from "./browser";
import { company, world } from "./world";

useBrowser();

describe("logging in", () => {
  it("asks for a key, and keeps it in this tab alone", async () => {
    await withPage("", async (page) => {
      await page.getByRole("heading", { name: "Who looks?" }).waitFor();
      assert.deepEqual(await violations(page), []);
      await logIn(page);
      await settled(page);
      assert.equal(page.url().includes(world.key), false);
      const kept = await page.evaluate(() => ({
        local: JSON.stringify(localStorage),
        session: JSON.stringify(sessionStorage),
        cookies: document.cookie,
      }));
      assert.equal(kept.local.includes(world.key), false);
      assert.equal(kept.session.includes(world.key), true);
      assert.equal(kept.cookies, "");
      await page.reload();
      await page.getByRole("navigation", { name: "Pages" }).waitFor();
      await page.getByText("deployment key").first().click();
      await page.getByRole("button", { name: "Log out" }).click();
      await page.getByRole("heading", { name: "Who looks?" }).waitFor();
      assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    });
  });

  it("says that a key is wrong, and stays", async () => {
    await withPage(
      "#/budgets",
      async (page) => {
        await logIn(page, "a-key-that-was-never-made");
        await page.getByRole("alert").getByText("This key is not right.").waitFor();
        assert.deepEqual(await violations(page), []);
      },
      { mayComplain: /401/ },
    );
  });

  it("says that a secret is wrong", async () => {
    await withPage(
      "",
      async (page) => {
        const { org_id, apps } = company(0);
        await logInAs(page, `org-${org_id}-app-${apps[0]}`, "pks_wrong");
        await page
          .getByRole("alert")
          .getByText("This client id and secret are not right.")
          .waitFor();
      },
      { mayComplain: /401/ },
    );
  });
});
