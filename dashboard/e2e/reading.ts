/** What the page shows, and the answers that it drew it from. */
import type { Page } from "playwright-core";

/** A shown table at one moment: each row by its name, with every number in it. */
export interface Shown {
  rows: Record<string, string[]>;
  foot: string[];
}

/** The numbers of a table, all of one moment. */
export function readTable(page: Page, caption: string): Promise<Shown | null> {
  return page.evaluate((wanted) => {
    const numbers = (row: Element): string[] =>
      [...row.querySelectorAll("data")].map((one) => one.getAttribute("value") ?? "");
    const table = [...document.querySelectorAll("table")].find(
      (one) => one.caption?.textContent === wanted,
    );
    if (table === undefined) return null;
    const rows = [...table.querySelectorAll("tbody > tr")].map((row) => [
      row.querySelector("th a")?.textContent ?? row.querySelector("th")?.textContent ?? "",
      numbers(row),
    ]);
    const foot = table.querySelector("tfoot tr");
    return { rows: Object.fromEntries(rows), foot: foot === null ? [] : numbers(foot) };
  }, caption);
}

/** The numbers of a tile. */
export function readTile(page: Page, name: string): Promise<string[]> {
  return page.evaluate((wanted) => {
    const tile = [...document.querySelectorAll(".tile")].find(
      (one) => one.querySelector("dt")?.textContent === wanted,
    );
    return [...(tile?.querySelectorAll("data") ?? [])].map(
      (one) => one.getAttribute("value") ?? "",
    );
  }, name);
}

/** Every answer that the page got under paths that match, the newest last. */
export function record(page: Page, path: RegExp): { url: string; body: any }[] {
  const answers: { url: string; body: any }[] = [];
  page.on("response", async (reply) => {
    if (!path.test(reply.url()) || reply.status() !== 200) return;
    const at = answers.push({ url: reply.url(), body: null }) - 1;
    const body = await reply.json().catch(() => null); // the page may have gone on
    answers[at] = { url: reply.url(), body };
  });
  return answers;
}

export const COUNTERS = [
  "cost_usd_micros",
  "requests",
  "errors",
  "input_tokens",
  "output_tokens",
  "cache_read_tokens",
  "cache_write_tokens",
  "held_usd_micros",
  "unsettled_usd_micros",
] as const;

/** An answer of `/spend` as the table would show it. */
export function expectedTable(answer: any, nameOf: (row: any) => string): Shown {
  const numbers = (row: any): string[] => COUNTERS.map((name) => String(row[name]));
  return {
    rows: Object.fromEntries(answer.rows.map((row: any) => [nameOf(row), numbers(row)])),
    foot: numbers(answer.total),
  };
}
