/** Dark or light: the system's choice, unless a person chooses. */
import { Cell } from "./cell";

export type Theme = "light" | "dark";

const STORED = "pricekeeper.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen(): Theme | null {
  try {
    const text = localStorage.getItem(STORED);
    return text === "light" || text === "dark" ? text : null;
  } catch {
    return null;
  }
}

function current(): Theme {
  return chosen() ?? (system.matches ? "dark" : "light");
}

export const theme = new Cell<Theme>(current());

function apply(): void {
  document.documentElement.dataset.theme = current();
  theme.value = current();
}

/** Take the other one; back at what the system has, follow the system again. */
export function switchTheme(): void {
  const next: Theme = theme.value === "dark" ? "light" : "dark";
  try {
    if (next === (system.matches ? "dark" : "light")) localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, next);
  } catch {
    // then it follows the system
  }
  apply();
}

system.addEventListener("change", apply);
apply();
