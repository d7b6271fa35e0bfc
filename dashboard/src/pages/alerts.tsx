/** The newest alerts. */
import type { JSX } from "preact";
import { usePath } from "../api/queries";
import type { AlertList } from "../api/wire";
import { Badge, Panel } from "../parts/panel";
import { Away } from "../parts/time";
import type { View } from "../state/view";

const SHOWN = 4;
const TONES = { delivered: "good", pending: "plain", given_up: "over", unsent: "plain" } as const;
const WORDS = {
  delivered: "told",
  pending: "being told",
  given_up: "could not be told",
  unsent: "no channel",
} as const;

/** The newest alerts; nothing, if there are none or they are not for this viewer. */
export function Alerts({ view }: { view: View }): JSX.Element | null {
  const { org } = view.filters;
  const isShown = view.rights.onlyApp === null;
  const alerts = usePath<AlertList>(
    isShown ? `/api/v1/alerts${org ? `?org_id=${org}` : ""}` : null,
    ["alerts"],
    60_000,
  );
  const newest = alerts.data?.alerts.slice(0, SHOWN) ?? [];
  if (newest.length === 0) return null;
  return (
    <Panel title="Alerts" note="the newest">
      <ul class="alerts">
        {newest.map((one) => (
          <li key={one.id}>
            <span class="alert-title" title={one.text}>
              {one.title}
            </span>
            <Badge tone={TONES[one.state]}>{WORDS[one.state]}</Badge>
            <span class="note">
              <Away at={one.at} zone={view.clock} />
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
