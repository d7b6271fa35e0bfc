/** Everything about one organisation or one app. */
import type { JSX } from "preact";
import { usePath } from "../api/queries";
import type { AggregateAnswer, AppAnswer, OrgAnswer } from "../api/wire";
import { Answer, Badge, Empty, Failure, Panel, Waiting } from "../parts/panel";
import { Moment } from "../parts/time";
import { linkTo } from "../state/route";
import { clientPath, settingsPath, type View } from "../state/view";
import { FreezeButton, OverrideButton } from "./actions";
import { BudgetList } from "./budgets";
import { Authorizations } from "./client_authorizations";
import { Flips } from "./client_flips";
import { Limits } from "./client_limits";
import { Models } from "./client_models";
import { Sessions } from "./client_sessions";
import { Settings } from "./client_settings";
import { SpendTiles, useBudgets } from "./overview";
import { SpendChart, TokenChart } from "./spend_chart";
import { SpendTable, useSpendRows } from "./spend_table";

export function Client({ view }: { view: View }): JSX.Element {
  const { org, app } = view.filters;
  if (view.orgs === null) {
    if (view.orgsFailed !== null)
      return <Failure problem={view.orgsFailed} reload={view.reloadOrgs} />;
    return <Waiting lines={8} />;
  }
  return org === undefined ? (
    <ChooseOrg view={view} />
  ) : (
    <One key={`${org} ${app}`} view={view} org={org} app={app} />
  );
}

function ChooseOrg({ view }: { view: View }): JSX.Element {
  const orgs = [...(view.orgs ?? [])].sort((one, other) => one.name.localeCompare(other.name));
  return (
    <Panel title="Which organisation?" note="One of these, or the filter above">
      {orgs.length === 0 ? (
        <Empty title="No organisation yet">
          PUT /api/v1/orgs/… makes one, and so does pricekeeper org create.
        </Empty>
      ) : (
        <ul class="chooser">
          {orgs.map(({ id, name, configuration }) => (
            <li key={id}>
              <a href={linkTo({ filters: { org: id } })}>{name}</a>
              <span class="note">{configuration.timezone}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function One({
  view,
  org,
  app,
}: {
  view: View;
  org: string;
  app: string | undefined;
}): JSX.Element {
  const path = clientPath(org, app);
  const client = usePath<OrgAnswer | AppAnswer>(settingsPath(org, app), ["settings"]);
  const today = usePath<AggregateAnswer>(`${path}/aggregates/today`, [
    "spend",
    "flips",
    "settings",
  ]);
  const spend = useSpendRows(view);
  const budgets = useBudgets(view);
  if (client.data === null) {
    if (client.error !== null) return <Failure problem={client.error} reload={client.reload} />;
    return <Waiting lines={8} />;
  }
  const zone = view.clock;
  return (
    <div class="stackup">
      <Head view={view} client={client.data} today={today.data} />
      <SpendTiles view={view} sum={spend.data?.total ?? null} />
      <div class="columns">
        <SpendChart view={view} />
        <TokenChart view={view} />
      </div>
      <Models view={view} path={path} today={today} />
      <Flips
        path={path}
        zone={zone}
        span={view.span}
        order={client.data.configuration.model_ordering}
      />
      <Panel title="Budgets" note="every one that applies, in its present window">
        <Answer of={budgets}>{({ rows }) => <BudgetList view={view} budgets={rows} />}</Answer>
      </Panel>
      {app === undefined ? <SpendTable view={view} spend={spend} /> : null}
      <div class="columns">
        {app === undefined ? null : <Limits path={path} zone={zone} settings={client.data} />}
        <Sessions view={view} path={path} zone={zone} />
      </div>
      {app === undefined ? null : <Authorizations path={path} zone={zone} />}
      <Settings client={client.data} orgName={view.nameOf(org)} zone={zone} />
    </div>
  );
}

function Head(how: {
  view: View;
  client: OrgAnswer | AppAnswer;
  today: AggregateAnswer | null;
}): JSX.Element {
  const { view, client, today } = how;
  const app = "app_id" in client ? client : null;
  const zone = client.configuration.timezone;
  const name = "org_name" in client ? client.org_name : client.app_name;
  return (
    <div class="client-head">
      <div>
        {app === null || view.rights.onlyApp !== null ? null : (
          <p class="note">
            <a href={linkTo({ filters: { app: undefined } })}>{view.nameOf(client.org_id)}</a> /
          </p>
        )}
        <p class="client-name">{name}</p>
        <p class="note">
          <span class="mono">{client.client_id}</span> · days of {zone}
        </p>
      </div>
      <div class="client-badges">
        {client.frozen === undefined ? null : (
          <Badge tone="over" title={client.frozen.reason}>
            frozen {client.frozen.scope === "ORG" ? "with its organisation" : ""} since{" "}
            <Moment at={client.frozen.at} zone={view.clock} />: {client.frozen.reason}
          </Badge>
        )}
        {today?.sticky_fallback_active ? <Badge tone="near">fallback in force</Badge> : null}
        {today?.current_active_model ? (
          <Badge tone="info">now {today.current_active_model}</Badge>
        ) : null}
      </div>
      {view.rights.operates ? (
        <div class="actions">
          <OverrideButton client={client} />
          <FreezeButton client={client} />
        </div>
      ) : null}
    </div>
  );
}
