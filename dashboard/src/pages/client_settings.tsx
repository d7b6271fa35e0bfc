/** What is set for a client, and from where each of it is inherited. */
import type { ComponentChildren, JSX } from "preact";
import type { AppAnswer, Configuration, OrgAnswer } from "../api/wire";
import { count } from "../format/numbers";
import { type Clock, duration } from "../format/time";
import { Money } from "../parts/amounts";
import { Badge, Panel } from "../parts/panel";
import { Moment } from "../parts/time";

type Shown = { [K in keyof Configuration]: (value: Configuration[K]) => ComponentChildren };

const NAMES: Readonly<Record<keyof Configuration, string>> = {
  timezone: "Time zone",
  quota_scope: "Quota scope",
  quota_enforcement: "Quota enforcement",
  model_ordering: "Order of models",
  quotas: "Quotas a day",
  budgets: "Own budgets",
  rate_limits: "Rate limits",
  tag_keys: "Declared tags",
  sticky_fallback_enabled: "Fallback stays until midnight",
  tight_mode_threshold_pct: "Tight from",
  refresh_interval_normal_secs: "Refresh every",
  refresh_interval_tight_secs: "Refresh every, if tight",
  session_limit: "Maximum sessions",
  max_output_tokens_cap: "Longest answer",
  agg_shard_count: "Shards",
  alerts: "Alerts",
};
/** What only an organisation says. */
const OF_ORG = [
  "timezone",
  "quota_scope",
  "quota_enforcement",
  "tag_keys",
  "sticky_fallback_enabled",
  "agg_shard_count",
  "alerts",
];

const none = <span class="note">none</span>;
const SHOW: Shown = {
  timezone: (zone) => zone,
  quota_scope: (scope) => (scope === "APP" ? "each app" : "the organisation"),
  quota_enforcement: (how) => (how === "STRICT" ? "strict: held before a call" : "advice"),
  model_ordering: (labels) => labels.join(" → "),
  quotas: (quotas) => (
    <ul class="pairs">
      {Object.entries(quotas).map(([label, micros]) => (
        <li key={label}>
          {label} <Money micros={micros} />
        </li>
      ))}
    </ul>
  ),
  budgets: (budgets) =>
    budgets.length === 0 ? (
      none
    ) : (
      <ul class="pairs">
        {budgets.map((one) => (
          <li key={one.name}>
            {one.name} <Money micros={one.limit_usd_micros} /> a {one.window.toLowerCase()}
            {one.per_tag ? ` for each ${one.per_tag}` : ""}
            {one.labels ? `, for ${one.labels.join(", ")}` : ""}
            {one.enforcement === "SOFT" ? ", soft" : ""}
            {one.alert_at_pct && one.alert_at_pct.length > 0
              ? `, told at ${one.alert_at_pct.join(", ")} %`
              : ""}
          </li>
        ))}
      </ul>
    ),
  rate_limits: (limits) =>
    Object.keys(limits).length === 0 ? (
      none
    ) : (
      <ul class="pairs">
        {Object.entries(limits).flatMap(([label, named]) =>
          Object.entries(named).map(([name, one]) => (
            <li key={`${label} ${name}`}>
              {label === "*" ? "every model" : label}: {name} {count(one.refill_amount)} in{" "}
              {duration(Number(one.refill_period_ms))}, up to {count(one.capacity)}
            </li>
          )),
        )}
      </ul>
    ),
  tag_keys: (keys) => (keys.length === 0 ? none : keys.join(", ")),
  sticky_fallback_enabled: (is) => (is ? "yes" : "no"),
  tight_mode_threshold_pct: (pct) => `${pct} %`,
  refresh_interval_normal_secs: (secs) => duration(Number(secs) * 1000),
  refresh_interval_tight_secs: (secs) => duration(Number(secs) * 1000),
  session_limit: (limit) => count(limit),
  max_output_tokens_cap: (cap) => (cap === null ? none : `${count(cap)} tokens`),
  agg_shard_count: (shards) => count(shards),
  alerts: (alerts) => {
    const set = Object.entries(alerts).filter(([, value]) => value !== null);
    if (set.length === 0) return none;
    return (
      <ul class="pairs">
        {set.map(([name, value]) => (
          <li key={name}>{`${name} ${String(value)}`}</li>
        ))}
      </ul>
    );
  },
};

export function Settings({
  client,
  orgName,
  zone,
}: {
  client: OrgAnswer | AppAnswer;
  orgName: string;
  zone: Clock;
}): JSX.Element {
  const { configuration } = client;
  const fields = (Object.keys(NAMES) as (keyof Configuration)[]).filter(
    (name) => name in configuration,
  );
  return (
    <Panel
      title="Settings"
      note={
        <>
          {client.updated_at ? (
            <>
              changed <Moment at={client.updated_at} zone={zone} />
            </>
          ) : null}
          {client.client_secret_created_at ? (
            <>
              {" "}
              · secret of <Moment at={client.client_secret_created_at} zone={zone} />
            </>
          ) : null}
        </>
      }
    >
      <table class="settings">
        <caption>Settings in force</caption>
        <thead>
          <tr>
            <th scope="col">Setting</th>
            <th scope="col">In force</th>
            <th scope="col">From</th>
          </tr>
        </thead>
        <tbody>
          {fields.map((name) => (
            <tr key={name}>
              <th scope="row">{NAMES[name]}</th>
              <td>{show(name, configuration)}</td>
              <td>
                <Origin client={client} name={name} orgName={orgName} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function show<K extends keyof Configuration>(
  name: K,
  configuration: Configuration,
): ComponentChildren {
  return SHOW[name](configuration[name]);
}

/** Where a setting comes from: the app itself, or its organisation. */
function Origin(how: {
  client: OrgAnswer | AppAnswer;
  name: keyof Configuration;
  orgName: string;
}): JSX.Element {
  const { client, name } = how;
  if (!("inherited_fields" in client)) return <span class="note">the organisation</span>;
  if (OF_ORG.includes(name) || client.inherited_fields.includes(name)) {
    return <Badge tone="plain">inherited from {how.orgName}</Badge>;
  }
  return <Badge tone="info">its own</Badge>;
}
