import type { JSX } from "preact";
import { useCell } from "../state/cell";
import { switchTheme, theme } from "../state/theme";

export function ThemeButton(): JSX.Element {
  const isDark = useCell(theme) === "dark";
  const title = isDark ? "Switch to light colours" : "Switch to dark colours";
  return (
    <button type="button" class="icon" aria-label={title} title={title} onClick={switchTheme}>
      <svg viewBox="0 0 20 20" aria-hidden="true">
        <circle cx="10" cy="10" r="6.5" fill="none" stroke="currentColor" stroke-width="1.6" />
        <path d="M10 3.5a6.5 6.5 0 0 1 0 13z" fill="currentColor" />
      </svg>
    </button>
  );
}
