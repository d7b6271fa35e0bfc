/** The authorization of a call, if there was one. */
import type { JSX } from "preact";
import { usePath } from "../api/queries";
import type { AuthorizationAnswer, UsageRecord } from "../api/wire";
import { Count, Money } from "../parts/amounts";
import { Badge, Waiting } from "../parts/panel";
import { Instant } from "../parts/time";
import { clientPath, type View } from "../state/view";

export function Decision(how: { view: View; call: UsageRecord; org: string }): JSX.Element {
  const { call, org } = how;
  const zone = how.view.clock;
  const path =
    call.app_id === null
      ? null
      : `${clientPath(org, call.app_id)}/authorizations/${call.request_id}`;
  const found = usePath<AuthorizationAnswer>(path, []);
  return (
    <div class="decision">
      <p>
        <span class="mono">{call.request_id}</span> · happened{" "}
        <Instant at={call.happened_at} zone={zone} />
        {call.service_tier ? ` · tier ${call.service_tier}` : ""}
        {call.calling_region ? ` · from ${call.calling_region}` : ""} · prices of{" "}
        {call.pricing_version}
      </p>
      {call.voided_at === undefined ? null : (
        <p>
          Voided <Instant at={call.voided_at} zone={zone} /> by the correction{" "}
          <span class="mono">{call.correction_id}</span>: it does not count.
        </p>
      )}
      {call.voids === undefined ? null : (
        <p>
          This is the correction of <span class="mono">{call.voids}</span>.
        </p>
      )}
      {found.data !== null ? (
        <dl class="facts">
          <dt>Decision</dt>
          <dd>
            <Badge tone="good">authorized</Badge>{" "}
            <Instant at={found.data.authorized_at} zone={zone} /> for {found.data.model_label}, then{" "}
            <Badge tone="plain">{found.data.status}</Badge>
          </dd>
          <dt>Held</dt>
          <dd>
            <Money micros={found.data.held_usd_micros} /> for an answer of up to{" "}
            <Count value={found.data.max_output_tokens} /> tokens
          </dd>
          <dt>Cost</dt>
          <dd>
            <Money micros={call.cost_usd_micros} />
            {found.data.overrun_usd_micros !== undefined &&
            Number(found.data.overrun_usd_micros) > 0 ? (
              <>
                , <Money micros={found.data.overrun_usd_micros} /> above the hold
              </>
            ) : null}
          </dd>
        </dl>
      ) : path !== null && found.error === null ? (
        <Waiting lines={2} />
      ) : (
        <p class="note">
          {found.error === null || found.error.status === 404
            ? "Reported after the call without an authorization, so nothing was held for it."
            : found.error.message}
        </p>
      )}
    </div>
  );
}
