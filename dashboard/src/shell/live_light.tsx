/** Whether what is shown is what is: live, behind, or cut off. */
import type { JSX } from "preact";
import { reachable } from "../api/http";
import { live } from "../api/live";
import { useCell } from "../state/cell";

export function LiveLight(): JSX.Element {
  const state = useCell(live);
  const isReachable = useCell(reachable);
  const [tone, text, title] = !isReachable
    ? (["over", "offline", "The service can't be reached. The page shows older numbers."] as const)
    : state === "live"
      ? (["good", "live", "Changes are shown as they happen."] as const)
      : state === "connecting"
        ? (["plain", "connecting", "Opening the stream of changes."] as const)
        : ([
            "near",
            "every 5 s",
            "The stream of changes is closed. The page asks for updates every 5 s.",
          ] as const);
  return (
    <span class={`live ${tone}`} role="status" title={title}>
      <span class="pulse" aria-hidden="true" />
      {text}
    </span>
  );
}
