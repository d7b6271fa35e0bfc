/** The Monday morning: who spent what, against which budget. */
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { useList, usePath } from "../api/queries";
import type { SpendAnswer, SpendSum } from "../api/wire";
import type { ClientBudget } from "../api/wire";
import { plural } from "../format/numbers";
import { Count, Money, Percent, ShortCount, Tile } from "../parts/amounts";
import { Answer, Empty, Failure, Panel } from "../parts/panel";
import { Away } from "../parts/time";
import { spanOf } from "../state/range";
import { linkTo } from "../state/route";
import { clientPath, spendPath, type View } from "../state/view";
import { Alerts } from "./alerts";
import { BudgetBar, budgetName, HealthBadge, healthOf, worstFirst } from "./budget_health";
import { useDenials } from "./denials";
import { boundsOf, Expected, forecastOf, SpentAt, useForecasts, useMonthEnd } from "./forecast";
import { SpendChart } from "./spend_chart";
import { SpendTable, useSpendRows } from "./spend_table";

const BUDGETS_SHOWN = 6;

export function Overview({ view }: { view: View }): JSX.Element {
  const spend = useSpendRows(view);
  const budgets = useBudgets(view);
  if (view.orgs === null && view.orgsFailed !== null) {
    return <Failure problem={view.orgsFailed} reload={view.reloadOrgs} />;
  }
  return (
    <div class="overview">
      <SpendTiles view={view} sum={spend.data?.total ?? null}>
        <DenialTile view={view} />
        <BudgetTile budgets={budgets.data?.rows ?? null} />
      </SpendTiles>
      <div class="columns wide-first">
        <SpendChart view={view} />
        <div class="stackup top-down">
          <Panel
            title="Budgets"
            note="the fullest"
            actions={<a href={linkTo({ page: "budgets" })}>All</a>}
          >
            <Answer of={budgets}>{({ rows }) => <Fullest view={view} budgets={rows} />}</Answer>
          </Panel>
          <Alerts view={view} />
        </div>
      </div>
      <SpendTable view={view} spend={spend} />
    </div>
  );
}

/** The budgets of what is looked at. */
export function useBudgets(view: View) {
  const found = useList<ClientBudget>("/api/v1/budgets", "budgets", ["budgets", "settings"]);
  const { org, app } = view.filters;
  const rows = found.data?.rows;
  const seen = useMemo(
    () =>
      rows?.filter(
        (one) =>
          (org === undefined || one.org_id === org) &&
          (app === undefined || one.app_id === undefined || one.app_id === app),
      ),
    [rows, org, app],
  );
  const data = found.data === null || seen === undefined ? null : { ...found.data, rows: seen };
  return { ...found, data };
}

/** Totals: spent, held, unsettled, calls, tokens. */
export function SpendTiles(how: {
  view: View;
  sum: SpendSum | null;
  children?: ComponentChildren;
}): JSX.Element {
  const { view, sum } = how;
  const isMonth = view.filters.range === "month";
  const month = spanOf("month", view.zone, Date.now());
  const path = view.orgs === null || isMonth ? null : spendPath(view, month, []);
  const monthly = usePath<SpendAnswer>(path, ["spend"]).data?.total ?? null;
  const { org, app, label, tag } = view.filters;
  const isClient = org !== undefined && label === undefined && tag === undefined;
  const monthEnd = useMonthEnd(isClient ? clientPath(org, app) : null);
  return (
    <dl class="tiles" aria-label="In short">
      <Tile name={`Spent, ${view.span.title}`}>
        {shown(sum, (one) => (
          <Money micros={one.cost_usd_micros} />
        ))}
      </Tile>
      {isMonth ? null : (
        <Tile name={`Spent, ${month.title}`}>
          {shown(monthly, (one) => (
            <Money micros={one.cost_usd_micros} />
          ))}
        </Tile>
      )}
      {monthEnd === null ? null : (
        <Tile name="Expected by the month's end" note={boundsOf(monthEnd)}>
          <Expected forecast={monthEnd} />
        </Tile>
      )}
      <Tile name="Held" note="for calls in flight">
        {shown(sum, (one) => (
          <Money micros={one.held_usd_micros} />
        ))}
      </Tile>
      <Tile
        name="Unsettled"
        note="charged at the hold until usage is reported"
        tone={Number(sum?.unsettled_usd_micros ?? 0) > 0 ? "near" : "plain"}
      >
        {shown(sum, (one) => (
          <Money micros={one.unsettled_usd_micros} />
        ))}
      </Tile>
      <Tile
        name="Calls"
        note={shown(sum, (one) => (
          <>
            <Count value={one.errors} /> failed
          </>
        ))}
      >
        {shown(sum, (one) => (
          <Count value={one.requests} />
        ))}
      </Tile>
      <Tile
        name="Tokens"
        note={shown(sum, (one) => (
          <>
            cache <ShortCount value={one.cache_read_tokens} /> read,{" "}
            <ShortCount value={one.cache_write_tokens} /> written
          </>
        ))}
      >
        {shown(sum, (one) => (
          <>
            <ShortCount value={one.input_tokens} /> <small>in</small>{" "}
            <ShortCount value={one.output_tokens} /> <small>out</small>
          </>
        ))}
      </Tile>
      {how.children}
    </dl>
  );
}

/** How many calls were denied. Counts add up, unlike amounts that were cut. */
function DenialTile({ view }: { view: View }): JSX.Element {
  const { data: denied, error } = useDenials(view);
  const sum = denied?.denials.reduce((sum, one) => sum + BigInt(one.count), 0n) ?? 0n;
  return (
    <Tile
      name="Denied"
      href={linkTo({ page: "denials" })}
      note={denied === null ? "" : plural(denied.denials.length, "reason")}
      tone={sum > 0n ? "near" : "plain"}
    >
      {denied !== null ? (
        <Count value={sum} />
      ) : error === null ? (
        <span class="gap" />
      ) : (
        "not known"
      )}
      {denied === null || denied.isWhole ? null : " or more"}
    </Tile>
  );
}

function BudgetTile({ budgets }: { budgets: ClientBudget[] | null }): JSX.Element {
  const counts = { over: 0, near: 0, fine: 0 };
  for (const budget of budgets ?? []) counts[healthOf(budget)] += 1;
  return (
    <Tile
      name="Budgets"
      href={linkTo({ page: "budgets" })}
      tone={counts.over > 0 ? "over" : counts.near > 0 ? "near" : "plain"}
      note={budgets === null ? "" : `${counts.near} near their end, ${counts.fine} fine`}
    >
      {budgets === null ? <span class="gap" /> : plural(counts.over, "spent", "spent")}
    </Tile>
  );
}

function shown<T>(value: T | null, show: (value: T) => JSX.Element): JSX.Element {
  return value === null ? <span class="gap" /> : show(value);
}

function Fullest({ view, budgets }: { view: View; budgets: ClientBudget[] }): JSX.Element {
  const worst = useMemo(() => worstFirst(budgets).slice(0, BUDGETS_SHOWN), [budgets]);
  const forecasts = useForecasts(worst);
  if (worst.length === 0) {
    return (
      <Empty title="No budget applies">
        A budget is a limit on money in a window that holds before a call is made.
      </Empty>
    );
  }
  return (
    <ul class="fullest">
      {worst.map((budget) => {
        const taken = BigInt(budget.limit_usd_micros) - BigInt(budget.remaining_usd_micros);
        const name = budgetName(budget);
        const forecast = forecastOf(forecasts, budget);
        const zone = view.clock;
        return (
          <li key={name}>
            <div class="fullest-head">
              <span class="fullest-name" title={name}>
                {name}
              </span>
              <HealthBadge budget={budget} />
              <Percent part={taken} whole={budget.limit_usd_micros} toward="up" />
            </div>
            <BudgetBar budget={budget} name={name} />
            <div class="fullest-foot note">
              <span>
                <Money micros={budget.remaining_usd_micros} /> left of{" "}
                <Money micros={budget.limit_usd_micros} />
              </span>
              {forecast === undefined ? null : (
                <span>
                  <Expected forecast={forecast} /> expected{" "}
                  <SpentAt forecast={forecast} zone={zone} />
                </span>
              )}
              <span>
                resets <Away at={budget.resets_at} zone={zone} />
              </span>
            </div>
          </li>
        );
      })}
    </ul>
  );
}
