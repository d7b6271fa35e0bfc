/** The present moment, once a second, for what is relative to it. */
import { Cell } from "./cell";

const TICK_MS = 1000;

export const now = new Cell(Date.now());

setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, TICK_MS);
document.addEventListener("visibilitychange", () => {
  now.value = Date.now();
});
