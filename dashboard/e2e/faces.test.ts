import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { settled, useBrowser, violations, withAdmin, withClient } from "./browser";
import { readTable, readTile } from "./reading";
import { ask, bearer, company } from "./world";

const PAGES = ["overview", "client", "budgets", "denials", "log", "audit"];

useBrowser();

describe("faces of the page", () => {
  it("shows an app's developers their app alone, and lets them change nothing", async () => {
    const { org_id, apps } = company(0);
    const clientId = `org-${org_id}-app-${apps[1]}`;
    await withClient(clientId, `#/overview?org=${company(1).org_id}&range=7d`, async (page) => {
      await settled(page);
      const nav = page.getByRole("navigation", { name: "Pages" });
      assert.deepEqual(await nav.getByRole("link").allTextContents(), [
        "Overview",
        "App",
        "Budgets",
        "Denials",
        "Log",
      ]);
      const [spent] = await readTile(page, "Spent, 7 days");
      const headers = await bearer(clientId);
      const { rows, total } = await ask(sevenDays(), headers);
      assert.equal(spent, String(total.cost_usd_micros));
      assert.equal(
        Object.keys((await readTable(page, "Spend by label"))?.rows ?? {}).length,
        rows.length,
      );
      await nav.getByRole("link", { name: "App" }).click();
      await page.getByText("Settings in force").waitFor({ state: "attached" });
      await settled(page);
      assert.equal(
        await page.getByRole("button", { name: /Override|Freeze|Raise|^End/ }).count(),
        0,
      );
      assert.ok((await page.getByText("inherited from").count()) > 3);
      assert.deepEqual(await violations(page), []);
    });
  });

  it("shows an organisation its apps", async () => {
    const { org_id, apps } = company(0);
    await withClient(`org-${org_id}`, "#/overview?range=7d", async (page) => {
      await settled(page);
      const table = await readTable(page, "Spend by app");
      assert.deepEqual(Object.keys(table?.rows ?? {}).sort(), [...apps].sort());
    });
  });

  for (const [scheme, rules] of [
    ["light", undefined],
    ["dark", ["color-contrast"]],
  ] as const) {
    it(`can be used by everybody, ${scheme}`, async () => {
      await withAdmin(
        `#/overview?range=24h&org=${company(2).org_id}`,
        async (page) => {
          for (const name of PAGES) {
            const { hash } = new URL(page.url());
            await page.evaluate((to) => location.assign(to), hash.replace(/#\/\w+/, `#/${name}`));
            await settled(page);
            assert.deepEqual(await violations(page, rules && [...rules]), [], name);
          }
        },
        { colorScheme: scheme },
      );
    });
  }

  it("follows the system's colours until a person chooses", async () => {
    await withAdmin(
      "",
      async (page) => {
        const ground = (): Promise<string> =>
          page.evaluate(() => getComputedStyle(document.body).backgroundColor);
        const dark = await ground();
        await page.getByRole("button", { name: "Switch to light colours" }).click();
        const light = await ground();
        assert.notEqual(light, dark);
        await page.reload();
        await page.getByRole("navigation", { name: "Pages" }).waitFor();
        assert.equal(await ground(), light);
        await page.getByRole("button", { name: "Switch to dark colours" }).click();
        await page.emulateMedia({ colorScheme: "light" });
        await page.waitForFunction(
          (wanted) => getComputedStyle(document.body).backgroundColor === wanted,
          light, // it follows the system again
        );
      },
      { colorScheme: "dark" },
    );
  });

  for (const [width, height] of [
    [400, 800],
    [3840, 2160],
  ] as const) {
    it(`fits a screen of ${width} pixels`, async () => {
      await withAdmin(
        `#/overview?range=7d&org=${company(0).org_id}`,
        async (page) => {
          for (const name of PAGES) {
            const { hash } = new URL(page.url());
            await page.evaluate((to) => location.assign(to), hash.replace(/#\/\w+/, `#/${name}`));
            await settled(page);
            const wide = await page.evaluate(() => document.documentElement.scrollWidth);
            assert.ok(wide <= width, `${name} is ${wide} pixels wide`);
          }
          assert.deepEqual(await violations(page), []);
        },
        { viewport: { width, height } },
      );
    });
  }

  it("can be used without a mouse", async () => {
    await withAdmin("#/budgets", async (page) => {
      await settled(page);
      await page.keyboard.press("Tab");
      assert.equal(
        await page.evaluate(() => document.activeElement?.textContent),
        "Skip to the content",
      );
      await page.keyboard.press("Enter");
      assert.equal(await page.evaluate(() => document.activeElement?.id), "content");
      const raise = page.getByRole("button", { name: /^Raise / }).first();
      await raise.focus();
      await page.keyboard.press("Enter");
      await page.getByRole("dialog").waitFor();
      assert.equal(
        await page.getByRole("dialog").evaluate((box) => box.contains(document.activeElement)),
        true,
      );
      assert.deepEqual(await violations(page), []);
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "hidden" });
      assert.equal(await raise.evaluate((one) => one === document.activeElement), true);
    });
  });
});

/** The same question as the page's, past the page. */
function sevenDays(): string {
  const today = new Intl.DateTimeFormat("en-CA", { timeZone: company(0).zone }).format();
  const first = new Date(Date.parse(today) - 6 * 86_400_000).toISOString().slice(0, 10);
  return `/api/v1/spend?from=${first}&to=${today}&group_by=label`;
}
