/** Every budget: its state, its reset, and actions on it. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { ask } from "../api/http";
import type { AppAnswer, OrgAnswer } from "../api/wire";
import type { ClientBudget } from "../api/wire";
import { count } from "../format/numbers";
import { Count, Money, Percent, Tile } from "../parts/amounts";
import { messageOf } from "../parts/dialog";
import { Answer, Panel } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { Away } from "../parts/time";
import { linkTo } from "../state/route";
import { settingsPath, type View } from "../state/view";
import { OverrideDialog, RaiseDialog } from "./actions";
import {
  BudgetBar,
  budgetName,
  type Health,
  HealthBadge,
  healthOf,
  tagOf,
  takenRatio,
} from "./budget_health";
import { Expected, forecastOf, type Forecasts, SpentAt, useForecasts } from "./forecast";
import { useBudgets } from "./overview";

const STATES: readonly (readonly [Health | "", string])[] = [
  ["", "All"],
  ["over", "Spent"],
  ["near", "Near"],
  ["fine", "Fine"],
];

export function Budgets({ view }: { view: View }): JSX.Element {
  const budgets = useBudgets(view);
  const wanted = STATES.find(([state]) => state === view.route.own.state)?.[0] ?? "";
  return (
    <div class="stackup">
      <HealthTiles budgets={budgets.data?.rows ?? null} />
      <Panel
        title="Budgets"
        note="taken = spent + unsettled + held, as of now; windows are the organisation's"
        actions={<Key />}
      >
        <Answer of={budgets} lines={8}>
          {({ rows, isWhole }) => (
            <>
              {isWhole ? null : (
                <p class="stale">
                  There are more than the {count(rows.length)} that were read. Narrow the filter.
                </p>
              )}
              <BudgetList
                view={view}
                budgets={wanted === "" ? rows : rows.filter((one) => healthOf(one) === wanted)}
                controls={
                  <nav class="segments" aria-label="Which budgets">
                    {STATES.map(([state, title]) => (
                      <a
                        key={state}
                        href={linkTo({
                          own: {
                            state: state === "" ? undefined : state,
                          },
                        })}
                        {...(state === wanted ? { "aria-current": "true" as const } : {})}
                      >
                        {title}
                      </a>
                    ))}
                  </nav>
                }
              />
            </>
          )}
        </Answer>
      </Panel>
    </div>
  );
}

function HealthTiles({ budgets }: { budgets: ClientBudget[] | null }): JSX.Element {
  const counts = { over: 0, near: 0, fine: 0 };
  for (const budget of budgets ?? []) counts[healthOf(budget)] += 1;
  const shown = (value: number): JSX.Element =>
    budgets === null ? <span class="gap" /> : <Count value={value} />;
  return (
    <dl class="tiles few" aria-label="Health">
      <Tile name="Spent" tone={counts.over > 0 ? "over" : "plain"} note="the next call is denied">
        {shown(counts.over)}
      </Tile>
      <Tile name="Near" tone={counts.near > 0 ? "near" : "plain"} note="80 % or more is taken">
        {shown(counts.near)}
      </Tile>
      <Tile name="Fine">{shown(counts.fine)}</Tile>
    </dl>
  );
}

/** What the parts of a bar are. */
function Key(): JSX.Element {
  return (
    <ul class="legend">
      <li>
        <span class="dot s0" />
        spent
      </li>
      <li>
        <span class="dot unsettled-dot" />
        unsettled
      </li>
      <li>
        <span class="dot held-dot" />
        held
      </li>
    </ul>
  );
}

type Asked = { kind: "raise" | "override"; budget: ClientBudget; client: OrgAnswer | AppAnswer };

/** Budgets as a table. Shared by the pages that show some. */
export function BudgetList(how: {
  view: View;
  budgets: readonly ClientBudget[];
  controls?: JSX.Element;
}): JSX.Element {
  const { view } = how;
  const [asked, setAsked] = useState<Asked | null>(null);
  const [error, setError] = useState<string | null>(null);
  const begin = async (kind: Asked["kind"], budget: ClientBudget): Promise<void> => {
    setError(null);
    try {
      // What is set now: another may have changed it since the page was drawn.
      const client = await ask<OrgAnswer | AppAnswer>(settingsPath(budget.org_id, budget.app_id));
      setAsked({ kind, budget, client });
    } catch (caught) {
      setError(messageOf(caught));
    }
  };
  const { operates, provisions } = view.rights;
  const forecasts = useForecasts(how.budgets);
  const columns = useMemo(
    () => columnsOf(view, forecasts, operates || provisions ? begin : null),
    // The view is new at every drawing
    [view.orgs, view.filters.org, view.filters.app, operates, provisions, forecasts],
  );
  return (
    <>
      {error === null ? null : (
        <p class="refused" role="alert">
          {error}
        </p>
      )}
      <Table
        caption="Budgets"
        columns={columns}
        rows={how.budgets}
        keyOf={(one) => `${one.scope} ${budgetName(one)}`}
        sorted={{ column: "Taken", isDown: true }}
        textOf={(one) => `${budgetName(one)} ${one.window} ${one.enforcement} ${one.kind}`}
        empty={{
          title: "No budget here",
          text: "budgets of an organisation or an app are limits on money in a window that hold before a call is made.",
        }}
        controls={how.controls}
      />
      {asked?.kind === "raise" ? (
        <RaiseDialog budget={asked.budget} client={asked.client} close={() => setAsked(null)} />
      ) : null}
      {asked?.kind === "override" ? (
        <OverrideDialog client={asked.client} close={() => setAsked(null)} />
      ) : null}
    </>
  );
}

function columnsOf(
  view: View,
  forecasts: Forecasts,
  begin: ((kind: Asked["kind"], budget: ClientBudget) => Promise<void>) | null,
): Column<ClientBudget>[] {
  const money = (name: string, field: MoneyField): Column<ClientBudget> => ({
    name,
    isNumber: true,
    by: (one) => one[field],
    show: (one) => <Money micros={one[field]} />,
    csv: [[field, (one) => one[field]]],
  });
  const columns: Column<ClientBudget>[] = [
    {
      name: "Budget",
      isName: true,
      by: (one) => budgetName(one),
      show: (one) => <BudgetName budget={one} />,
      csv: [
        ["org_id", (one) => one.org_id],
        ["org_name", (one) => one.org_name],
        ["app_id", (one) => one.app_id],
        ["name", (one) => one.name],
        [
          "tag",
          (one) =>
            Object.entries(one.tag ?? {})
              .map(([key, value]) => `${key}:${value}`)
              .join(" "),
        ],
      ],
    },
    {
      name: "State",
      by: (one) => takenRatio(one),
      show: (one) => <HealthBadge budget={one} />,
      csv: [["state", (one) => healthOf(one)]],
    },
    {
      name: "Bar",
      class: "bar-cell",
      show: (one) => <BudgetBar budget={one} name={budgetName(one)} />,
    },
    {
      name: "Taken",
      isNumber: true,
      by: (one) => takenRatio(one),
      show: (one) => (
        <Percent
          part={BigInt(one.limit_usd_micros) - BigInt(one.remaining_usd_micros)}
          whole={one.limit_usd_micros}
          toward="up"
        />
      ),
    },
    money("Left", "remaining_usd_micros"),
    money("Limit", "limit_usd_micros"),
    money("Spent", "spent_usd_micros"),
    money("Held", "held_usd_micros"),
    money("Unsettled", "unsettled_usd_micros"),
    {
      name: "Expected",
      isNumber: true,
      by: (one) => forecastOf(forecasts, one)?.expected_usd_micros ?? -1,
      show: (one) => {
        const forecast = forecastOf(forecasts, one);
        if (forecasts === null) return <span class="gap small-gap" />;
        if (forecast === undefined) return <span class="note">–</span>;
        return (
          <span class="two-lines to-the-right">
            <Expected forecast={forecast} />
            <SpentAt forecast={forecast} zone={view.clock} />
          </span>
        );
      },
      csv: [
        ["expected_usd_micros", (one) => forecastOf(forecasts, one)?.expected_usd_micros],
        ["low_usd_micros", (one) => forecastOf(forecasts, one)?.low_usd_micros],
        ["high_usd_micros", (one) => forecastOf(forecasts, one)?.high_usd_micros],
        ["spent_at", (one) => forecastOf(forecasts, one)?.spent_at],
      ],
    },
    {
      name: "Resets",
      by: (one) => one.resets_at,
      show: (one) => (
        <span class="two-lines">
          <Away at={one.resets_at} zone={view.clock} />
          <span class="note">
            {one.window.toLowerCase()}
            {one.enforcement === "SOFT" ? ", soft" : ""}
          </span>
        </span>
      ),
      csv: [
        ["window", (one) => one.window],
        ["enforcement", (one) => one.enforcement],
        ["window_started_at", (one) => one.window_started_at],
        ["resets_at", (one) => one.resets_at],
      ],
    },
  ];
  if (begin !== null) {
    columns.push({
      name: "Do",
      class: "do-cell",
      show: (one) => (
        <span class="row-actions">
          {view.rights.provisions ? (
            <button
              type="button"
              onClick={() => void begin("raise", one)}
              aria-label={`Raise ${budgetName(one)}`}
            >
              Raise …
            </button>
          ) : null}
          <button
            type="button"
            onClick={() => void begin("override", one)}
            aria-label={`Override the model of ${budgetName(one)}`}
          >
            Override …
          </button>
        </span>
      ),
    });
  }
  return columns;
}

type MoneyField =
  | "limit_usd_micros"
  | "spent_usd_micros"
  | "held_usd_micros"
  | "unsettled_usd_micros"
  | "remaining_usd_micros";

function BudgetName({ budget }: { budget: ClientBudget }): JSX.Element {
  const app = budget.app_id;
  return (
    <span class="two-lines">
      <a href={linkTo({ page: "client", filters: { org: budget.org_id, app } })}>
        {budget.kind === "QUOTA" ? `quota of ${budget.label ?? budget.name}` : budget.name}
        {tagOf(budget)}
      </a>
      <span class="note">
        {budget.org_name}
        {budget.app_name === undefined ? "" : ` / ${budget.app_name}`}
      </span>
    </span>
  );
}
