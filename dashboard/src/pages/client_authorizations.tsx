/** Calls in flight, and unsettled ones. */
import type { Clock } from "../format/time";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { usePath } from "../api/queries";
import type { AuthorizationAnswer, AuthorizationList } from "../api/wire";
import { Count, Money } from "../parts/amounts";
import { Answer, Badge, Panel } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { Away, Instant } from "../parts/time";

const STATES = ["open", "unsettled"] as const;

export function Authorizations({ path, zone }: { path: string; zone: Clock }): JSX.Element {
  const [state, setState] = useState<(typeof STATES)[number]>("open");
  const found = usePath<AuthorizationList>(`${path}/authorizations?status=${state}`, [
    "authorizations",
  ]);
  const columns: Column<AuthorizationAnswer>[] = [
    {
      name: "Authorized",
      by: (one) => one.authorized_at,
      show: (one) => <Instant at={one.authorized_at} zone={zone} />,
      csv: [["authorized_at", (one) => one.authorized_at]],
    },
    {
      name: "Id",
      isName: true,
      show: (one) => <span class="mono">{one.authorization_id}</span>,
      csv: [["authorization_id", (one) => one.authorization_id]],
    },
    {
      name: "Label",
      by: (one) => one.model_label,
      show: (one) => one.model_label,
      csv: [["model_label", (one) => one.model_label]],
    },
    {
      name: "Held",
      isNumber: true,
      by: (one) => one.held_usd_micros,
      show: (one) => <Money micros={one.held_usd_micros} />,
      csv: [["held_usd_micros", (one) => one.held_usd_micros]],
    },
    {
      name: "Longest answer",
      isNumber: true,
      by: (one) => one.max_output_tokens,
      show: (one) => <Count value={one.max_output_tokens} />,
      csv: [["max_output_tokens", (one) => one.max_output_tokens]],
    },
    {
      name: state === "open" ? "Expires" : "Expired",
      by: (one) => one.expires_at,
      show: (one) => <Away at={one.expires_at} zone={zone} />,
      csv: [["expires_at", (one) => one.expires_at]],
    },
    {
      name: "Tags",
      show: (one) =>
        Object.entries(one.tags).map(([key, value]) => (
          <Badge key={key} tone="plain">{`${key}: ${value}`}</Badge>
        )),
      csv: [["tags", (one) => JSON.stringify(one.tags)]],
    },
  ];
  return (
    <Panel
      title="Authorizations"
      note={state === "open" ? "calls in flight" : "charged at their hold until usage is reported"}
    >
      <Answer of={found}>
        {(list) => (
          <Table
            caption={`Authorizations, ${state}`}
            columns={columns}
            rows={list.authorizations}
            keyOf={(one) => one.authorization_id}
            empty={
              state === "open"
                ? { title: "No call is in flight" }
                : { title: "Everything is settled" }
            }
            controls={
              <fieldset class="segments">
                <legend class="hidden">Which authorizations</legend>
                {STATES.map((one) => (
                  <button
                    key={one}
                    type="button"
                    class={one === state ? "current" : ""}
                    aria-pressed={one === state}
                    onClick={() => setState(one)}
                  >
                    {one}
                  </button>
                ))}
              </fieldset>
            }
          />
        )}
      </Answer>
    </Panel>
  );
}
