// Runs the tests of a folder by Node's own runner: `src` needs nothing, `e2e` a service and a browser.
//     node scripts/test.mjs src [--report FILE] [--only TEXT ...]
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { SOURCE } from "./build.mjs";

const { values, positionals } = parseArgs({
  options: { report: { type: "string" }, only: { type: "string", multiple: true, default: [] } },
  allowPositionals: true,
});
const [folder = "src"] = positionals;
const names = readdirSync(join(SOURCE, folder), { encoding: "utf8", recursive: true });
/** Takes the pictures of the documents. It runs only if `--only` names it. */
const PICTURES = "screenshots.test.ts";
const tests = names.filter(
  (name) =>
    name.endsWith(".test.ts") &&
    (values.only.length > 0 ? values.only.some((text) => name.includes(text)) : name !== PICTURES),
);
const report = values.report
  ? ["--test-reporter=junit", `--test-reporter-destination=${values.report}`]
  : [];
const { status } = spawnSync(
  process.execPath,
  [
    "--import",
    new URL("./typescript.mjs", import.meta.url).href,
    "--enable-source-maps",
    "--test",
    "--test-concurrency=1",
    "--test-reporter=spec",
    "--test-reporter-destination=stdout",
    ...report,
    ...tests.sort().map((name) => join(SOURCE, folder, name)),
  ],
  { stdio: "inherit", cwd: SOURCE },
);
process.exitCode = status ?? 1;
