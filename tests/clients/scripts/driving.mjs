// What the scripts of this folder do with their clients: the steps of one scenario, as driving.py does.
import { setTimeout as pause } from "node:timers/promises";

export const PIECES_READ = 2;

export async function drive(take) {
  const done = [];
  for (const step of JSON.parse(process.argv[2])) {
    if (step.do === "pause") {
      await pause(step.secs * 1000);
      continue;
    }
    const began = performance.now();
    const secs = () => Math.round((performance.now() - began) / 10) / 100;
    try {
      done.push({ outcome: "ok", chars: await take(step), secs: secs(), errors: [] });
    } catch (error) {
      const message = String(error.message).slice(0, 300);
      const errors = [error.name, ...(error.statusCode ? [`HTTP ${error.statusCode}`] : [])];
      done.push({ outcome: "error", chars: 0, secs: secs(), errors, message });
    }
  }
  console.log(JSON.stringify({ steps: done }));
}
