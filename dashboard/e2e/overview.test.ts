import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { describe, it } from "node:test";
import { settled, useBrowser, withAdmin } from "./browser";
import { expectedTable, readTable, record } from "./reading";
import { report } from "./traffic";
import { ask, company } from "./world";

useBrowser();

describe("the overview", () => {
  it("leads from organisations to apps, labels and calls, in the address", async () => {
    await withAdmin("#/overview?range=7d", async (page) => {
      await settled(page);
      const { org_id, name, apps } = company(0);
      await page.getByRole("link", { name, exact: true }).click();
      await page.waitForURL(`**/#/overview?range=7d&org=${org_id}`);
      await page.getByRole("table", { name: "Spend by app" }).waitFor();
      await settled(page);
      const table = await readTable(page, "Spend by app");
      assert.deepEqual(Object.keys(table?.rows ?? {}).sort(), [...apps].sort());
      await page.getByRole("link", { name: apps[0] ?? "", exact: true }).click();
      await page.waitForURL(`**org=${org_id}&app=${apps[0]}`);
      await page.getByRole("table", { name: "Spend by label" }).waitFor();
      await settled(page);
      const labels = await readTable(page, "Spend by label");
      const [label] = Object.keys(labels?.rows ?? {});
      await page
        .getByRole("table")
        .getByRole("link", { name: label ?? "", exact: true })
        .click();
      await page.waitForURL(`**/#/log?*label=${label}`);
      await page.getByRole("heading", { name: "Calls" }).waitFor();
      await page.goBack();
      await page.goBack();
      await page.getByRole("table", { name: "Spend by app" }).waitFor();
    });
  });

  it("groups by a tag, sorts, filters, and gives what is seen as CSV", async () => {
    await withAdmin(`#/overview?range=7d&org=${company(0).org_id}`, async (page) => {
      const answers = record(page, /group_by=tag%3Ateam/);
      await page.getByRole("link", { name: "Tag team" }).click();
      await page.getByRole("columnheader", { name: "Tag team" }).waitFor();
      const answer = answers.at(-1)?.body;
      const expected = expectedTable(answer, (row) => row["tag:team"]);
      assert.deepEqual(await readTable(page, "Spend by tag team"), expected);

      const calls = page.getByRole("columnheader", { name: "Calls" });
      await calls.getByRole("button").click();
      assert.equal(await calls.getAttribute("aria-sort"), "descending");
      const shown = await readTable(page, "Spend by tag team");
      const requests = Object.values(shown?.rows ?? {}).map((row) => Number(row[1]));
      assert.deepEqual(
        requests,
        [...requests].sort((one, other) => other - one),
      );

      await page.getByLabel("Filter Spend by tag team").fill("plat");
      await page.getByText("1 of 3 rows").waitFor();
      const [download] = await Promise.all([
        page.waitForEvent("download"),
        page.getByRole("button", { name: "CSV" }).last().click(),
      ]);
      const [names, line, end] = (await readFile(await download.path(), "utf8")).split("\r\n");
      const row = answer.rows.find((one: any) => one["tag:team"] === "platform");
      assert.equal(names?.startsWith("tag:team,cost_usd_micros,requests,"), true);
      assert.equal(
        line,
        names
          ?.split(",")
          .map((name) => row[name])
          .join(","),
      );
      assert.equal(end, "");
    });
  });

  it("shows the rows behind its chart, and leads from a bar to its calls", async () => {
    await withAdmin(`#/overview?range=7d&org=${company(1).org_id}`, async (page) => {
      const chart = page.getByRole("group", { name: /^Spend by label/ });
      await chart.focus();
      await page.keyboard.press("End");
      await page.keyboard.press("ArrowLeft");
      const said = page.locator(".reading");
      await said.waitFor();
      const exact = await said.locator("data").first().getAttribute("value");
      const day = await said.getByRole("link").getAttribute("href");
      await page.getByRole("button", { name: "Rows" }).click();
      await page.getByRole("columnheader", { name: "label" }).waitFor();
      const cell = page.locator(`table data[value="${exact}"]`).first();
      await cell.waitFor();
      await page.locator(`table a[href="${day}"]`).first().click();
      await page.waitForURL(/#\/log\?range=.+\.\./);
      await page.getByRole("heading", { name: "Calls" }).waitFor();
    });
  });

  it("shows a call as soon as it is captured", async () => {
    const { org_id, apps } = company(2);
    await withAdmin(`#/overview?org=${org_id}&range=24h`, async (page) => {
      await page.getByText("live", { exact: true }).waitFor();
      await settled(page);
      const { cost_usd_micros: cost } = await report(org_id, apps[0] ?? "", {
        input_tokens: 4321,
      });
      const path = `/api/v1/spend?from=${hour(-23)}&to=${hour(1)}&org_id=${org_id}`;
      let total = 0;
      await page.waitForFunction(
        ([wanted]) => document.querySelector(".tile data")?.getAttribute("value") === wanted,
        [String((total = (await ask(path)).total.cost_usd_micros))],
      );
      assert.ok(cost > 0 && total >= cost);
    });
  });

  it("shows text from outside as text", async () => {
    const { org_id } = company(2);
    await withAdmin(`#/client?org=${org_id}`, async (page) => {
      await page.getByRole("option", { name: "Tutor <beta>" }).waitFor({ state: "attached" });
      assert.equal(await page.locator("beta").count(), 0);
    });
  });
});

function hour(offset: number): string {
  const at = (Math.floor(Date.now() / 3_600_000) + offset) * 3_600_000;
  return `${new Date(at).toISOString().slice(0, 19)}Z`;
}
