import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { settled, useBrowser, withAdmin } from "./browser";
import { world } from "./world";

const BYTES_MAX = 200_000;
const VIEWS = 5;

useBrowser();

describe("the first view", () => {
  it("loads nothing from anywhere else, is small, and says how long it took", async (test) => {
    await withAdmin("", async (page) => {
      await settled(page);
      const times: number[] = [];
      for (let view = 0; view < VIEWS; view += 1) {
        await page.reload({ waitUntil: "commit" });
        const time = await page.waitForFunction(() =>
          document.querySelector(".tile data") === null ? false : performance.now(),
        );
        times.push(Number(await time.jsonValue()));
      }
      await settled(page);
      times.sort((one, other) => one - other);
      const median = Math.round(times[Math.floor(VIEWS / 2)] ?? 0);
      const files = await page.evaluate(() =>
        [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")]
          .map((one) => one as PerformanceResourceTiming)
          .filter((one) => !new URL(one.name).pathname.startsWith("/api/"))
          .map((one) => [new URL(one.name).origin, one.encodedBodySize] as const),
      );
      assert.ok(files.every(([origin]) => origin === world.url));
      const bytes = files.reduce((sum, [, size]) => sum + size, 0);
      assert.ok(bytes > 10_000 && bytes < BYTES_MAX, `${bytes} bytes`);
      test.diagnostic(`first view: ${median} ms until numbers are shown, median of ${VIEWS}`);
      test.diagnostic(`size: ${bytes} bytes over the wire in ${files.length} files`);
    });
  });
});
