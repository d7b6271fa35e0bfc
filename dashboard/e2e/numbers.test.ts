import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { settled, useBrowser, withAdmin } from "./browser";
import { expectedTable, readTable, readTile, record } from "./reading";
import { startTraffic } from "./traffic";
import { ask, world } from "./world";

const PER_SECOND = 500;
const LOOKS = 12;
const PAUSE_MS = 250;

useBrowser();

const nameOf = ({ org }: { org: string }): string =>
  world.companies.find(({ org_id }) => org_id === org)?.name ?? org;
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

describe("every number, while 500 records a second arrive", () => {
  it("is the API's, for the same filter, to the micro-dollar", async () => {
    await withAdmin("#/overview?range=24h", async (page) => {
      const spend = record(page, /\/api\/v1\/spend\?.*group_by=org(&|$)/);
      await page.reload();
      await settled(page);
      const stop = await startTraffic(PER_SECOND);
      const seen = new Set<string>();
      try {
        for (let look = 0; look < LOOKS; look += 1) {
          const shown = await readTable(page, "Spend by organisation");
          const [spent] = await readTile(page, "Spent, 24 hours");
          await pause(PAUSE_MS); // so that the answer that was drawn has been recorded, too
          const expected = spend
            .filter(({ body }) => body !== null)
            .map(({ body }) => JSON.stringify(sorted(expectedTable(body, nameOf))));
          const text = JSON.stringify(sorted(shown));
          assert.ok(expected.includes(text), `${text} is in none of ${expected.length} answers`);
          assert.ok(spend.some(({ body }) => String(body?.total.cost_usd_micros) === spent));
          seen.add(text);
        }
      } finally {
        const counted = await stop();
        assert.ok(counted > 0);
      }
      assert.ok(seen.size > 3, `it was drawn ${seen.size} times only`);
      await agrees(page, spend.at(-1)?.url ?? "");
    });
  });
});

/** Once nothing more arrives, the page shows what a fresh answer says. */
async function agrees(page: Parameters<typeof readTable>[0], url: string): Promise<void> {
  const path = url.slice(world.url.length);
  let [shown, expected] = ["", "-"];
  for (let look = 0; look < 60 && shown !== expected; look += 1) {
    await pause(PAUSE_MS);
    shown = JSON.stringify(sorted(await readTable(page, "Spend by organisation")));
    expected = JSON.stringify(sorted(expectedTable(await ask(path), nameOf)));
  }
  assert.equal(shown, expected);
}

function sorted(table: Awaited<ReturnType<typeof readTable>>): unknown {
  return table === null ? null : [Object.entries(table.rows).sort(), table.foot];
}
