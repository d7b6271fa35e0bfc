// Claude Code, asked once for each step, as a program of its own.
import { spawnSync } from "node:child_process";
import { drive } from "./driving.mjs";

const CLAUDE = `${process.env.CLIENT_PACKAGES}/node_modules/.bin/claude`;
const QUIET = { DISABLE_AUTOUPDATER: "1", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1" };

await drive(async (step) => {
  const ran = spawnSync(CLAUDE, ["-p", step.prompt, "--model", step.model, "--output-format", "json"], {
    env: { ...process.env, ...QUIET },
    stdio: ["ignore", "pipe", "pipe"],
    encoding: "utf8",
    timeout: 100_000,
  });
  if (ran.error) throw ran.error;
  const said = JSON.parse(ran.stdout);
  if (said.is_error) throw new Error(said.result);
  return said.result.length;
});
