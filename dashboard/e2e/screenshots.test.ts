import { mkdir, mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { before, describe, it } from "node:test";
import { settled, useBrowser, withAdmin } from "./browser";
import { newId } from "./traffic";
import { appPath, bearer, call, company, orgPath } from "./world";

/** Where the pictures go: the folder that the environment names, or a temporary one. */
const FOLDER =
  process.env["PRICEKEEPER_SCREENSHOTS"] ?? (await mkdtemp(join(tmpdir(), "pricekeeper-page-")));
const DESK = { width: 1440, height: 900 };
const PHONE = { width: 400, height: 860 };
const WALL = { width: 3840, height: 2160 };

useBrowser();

/** Something of everything: calls under way, calls that were made, denied and overridden ones. */
async function stage(): Promise<void> {
  const { org_id, apps } = company(0);
  for (const [index, app] of apps.entries()) {
    const headers = await bearer(`org-${org_id}-app-${app}`);
    const post = (path: string, body: object) =>
      call("POST", `${appPath(0, app)}/${path}`, body, headers);
    for (let turn = 0; turn < 6; turn += 1) {
      const authorization_id = newId();
      const tokens = { input_tokens: 1800 + 700 * turn, max_output_tokens: 900 };
      const tags = { team: ["retail", "platform", "growth"][turn % 3], feature: "reply" };
      const model = ["auto", "economy", "standard"][(turn + index) % 3];
      await post("authorizations", { authorization_id, model, ...tokens, tags });
      if (turn % 3 > 0) {
        const used = { input_tokens: tokens.input_tokens, output_tokens: 210 + 40 * turn };
        await post(`authorizations/${authorization_id}/capture`, used);
      }
    }
  }
  const [chat = "", review = ""] = apps;
  const asChat = await bearer(`org-${org_id}-app-${chat}`);
  const large = { input_tokens: 400_000, max_output_tokens: 64_000 };
  for (const model of ["premium", "auto", "standard"]) {
    await call("POST", `${appPath(0, chat)}/authorizations`, { model, ...large }, asChat);
  }
  const consume = { rpm: 1, tpm: 900_000 };
  await call(
    "POST",
    `${appPath(0, chat)}/limits/acquire`,
    { resource: "premium", consume },
    asChat,
  );
  const asReview = await bearer(`org-${org_id}-app-${review}`);
  const much = { model_label: "premium", input_tokens: 940_000, output_tokens: 90_000 };
  await call("POST", `${appPath(0, review)}/usage`, { request_id: newId(), ...much }, asReview);
  await call("GET", `${appPath(0, review)}/model-selection?force_check=true`, undefined, asReview);
  const why = encodeURIComponent("launch day: quality first");
  await call("PUT", `${appPath(1, company(1).apps[0] ?? "")}/model-override?reason=${why}`, {
    model_label: "premium",
  });
  await call("PATCH", `${orgPath(2)}?reason=${encodeURIComponent("more pupils")}`, {
    quotas: { economy: 1_500_000 },
  });
}

describe("pictures of the page", () => {
  before(async () => {
    await mkdir(FOLDER, { recursive: true });
    await stage();
  });

  const org = company(0).org_id;
  for (const [name, hash, colorScheme, viewport, click] of [
    ["overview-dark", "#/overview?range=7d", "dark", DESK, null],
    ["overview-light", "#/overview?range=7d", "light", DESK, null],
    ["client-light", `#/client?range=7d&org=${org}`, "light", { width: 1440, height: 1500 }, null],
    ["denials-dark", `#/denials?range=24h&org=${org}`, "dark", DESK, /^show why/],
    ["log-dark", `#/log?range=24h&org=${org}`, "dark", DESK, /^show the decision/],
    ["budgets-light", "#/budgets", "light", DESK, null],
    ["audit-dark", "#/audit?range=24h", "dark", DESK, /^show the changes/],
    ["narrow-dark", `#/overview?range=7d&org=${org}`, "dark", PHONE, null],
    ["wall-dark", "#/overview?range=7d", "dark", WALL, null],
  ] as const) {
    it(name, async () => {
      await withAdmin(
        hash,
        async (page) => {
          await settled(page);
          if (click !== null) await page.getByRole("button", { name: click }).first().click();
          await settled(page);
          await page.mouse.move(0, 0);
          await page.screenshot({ path: join(FOLDER, `${name}.png`) });
        },
        // A call without an authorization has no decision, and the browser reports the 404.
        { colorScheme, viewport, mayComplain: /status of 404/ },
      );
    });
  }
});
