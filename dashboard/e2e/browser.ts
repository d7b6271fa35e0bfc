/** A real Chromium, and a page in it. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before } from "node:test";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";
import { world } from "./world";

const ARGUMENTS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
/** How long anything may take to appear, on a machine that does other things, too. */
export const PATIENCE_MS = 15_000;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let browser: Browser;

/** Have a browser for the tests of a file. */
export function useBrowser(): void {
  before(async () => {
    const executablePath = process.env["PRICEKEEPER_CHROMIUM"] ?? "/usr/bin/chromium";
    browser = await chromium.launch({ executablePath, args: ARGUMENTS });
  });
  after(async () => {
    await browser.close();
  });
}

/** Complaints of the browser: refused scripts, uncaught errors. */
export type Seen = Page & { complaints: string[] };

/** Open the page at a place, in a fresh profile. At its end nothing may have been complained about. */
export async function withPage(
  hash: string,
  test: (page: Seen) => Promise<void>,
  options: BrowserContextOptions & { mayComplain?: RegExp } = {},
): Promise<void> {
  const { mayComplain, ...how } = options;
  const context = await browser.newContext({
    baseURL: world.url,
    viewport: { width: 1440, height: 900 },
    colorScheme: "light",
    timezoneId: "Pacific/Auckland", // nowhere near any of the organisations
    locale: "en-GB",
    ...how,
  });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = Object.assign(await context.newPage(), { complaints: [] as string[] });
  page.on("pageerror", (error) => page.complaints.push(String(error.stack)));
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") {
      page.complaints.push(message.text());
    }
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(world.url) && !request.url().startsWith("blob:")) {
      page.complaints.push(`outside: ${request.url()}`);
    }
  });
  try {
    await page.goto(`/${hash}`);
    await test(page);
    const complaints = page.complaints.filter((text) => !mayComplain?.test(text));
    assert.deepEqual(complaints, []);
  } finally {
    await context.close();
  }
}

/** Log in with a key. */
export async function logIn(page: Page, key: string = world.key): Promise<void> {
  await page.getByLabel("Key", { exact: true }).fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
}

/** Log in as a client. */
export async function logInAs(page: Page, clientId: string, secret?: string): Promise<void> {
  await page.getByText("App or organisation").click();
  await page.getByLabel("Client id").fill(clientId);
  await page.getByLabel("Client secret").fill(secret ?? world.secrets[clientId] ?? "");
  await page.getByRole("button", { name: "Log in" }).click();
}

/** Open a place as an administrator. */
export async function withAdmin(
  hash: string,
  test: (page: Seen) => Promise<void>,
  options: Parameters<typeof withPage>[2] & { key?: string } = {},
): Promise<void> {
  const { key, ...how } = options;
  await withPage(
    hash,
    async (page) => {
      await logIn(page, key);
      await page.getByRole("navigation", { name: "Pages" }).waitFor();
      await test(page);
    },
    how,
  );
}

/** Open a place as a client. */
export async function withClient(
  clientId: string,
  hash: string,
  test: (page: Seen) => Promise<void>,
): Promise<void> {
  await withPage(hash, async (page) => {
    await logInAs(page, clientId);
    await page.getByRole("navigation", { name: "Pages" }).waitFor();
    await test(page);
  });
}

/** Wait until everything that the page asked for has been drawn. */
export async function settled(page: Page): Promise<void> {
  await page.waitForFunction(
    () =>
      document.querySelector(".waiting, .gap") === null && document.querySelector("main") !== null,
  );
}

/** What axe-core finds wrong with the page, for people who can't use it as others do. */
export async function violations(page: Page, rules?: string[]): Promise<string[]> {
  // The page's policy forbids scripts from elsewhere, so it is run as the debugger's own.
  await page.evaluate(`globalThis.axe ?? (() => {${AXE}})()`);
  return page.evaluate(async (only) => {
    const found = await (globalThis as never as { axe: AxeRun }).axe.run(document, {
      resultTypes: ["violations"],
      ...(only === undefined ? {} : { runOnly: only }),
    });
    return found.violations.map(
      ({ id, help, nodes }) =>
        `${id}: ${help}: ${nodes.length} times: ${nodes
          .slice(0, 3)
          .map(({ html }) => html.slice(0, 160))
          .join(" | ")}`,
    );
  }, rules);
}

interface AxeRun {
  run: (
    where: Document,
    how: object,
  ) => Promise<{ violations: { id: string; help: string; nodes: { html: string }[] }[] }>;
}
