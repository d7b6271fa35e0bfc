/** Where budgets will end: what is expected, between which bounds, and when a limit is spent. */
import type { Clock } from "../format/time";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { ask } from "../api/http";
import { useQuestion } from "../api/queries";
import type { ClientBudget, ForecastAnswer, ForecastList } from "../api/wire";
import { usdExact, usdShort } from "../format/money";
import { Badge } from "../parts/panel";
import { Away } from "../parts/time";
import { useCell } from "../state/cell";
import { now } from "../state/now";
import { clientPath } from "../state/view";

/** Of how many clients forecasts are read at once, and how often. */
const CLIENTS_MAX = 20;
const EVERY_MS = 60_000;

/** By budget; `null` until they are known. */
export type Forecasts = ReadonlyMap<string, ForecastAnswer> | null;

/** The forecasts of these budgets, as far as they are known. */
export function useForecasts(budgets: readonly ClientBudget[] | null): Forecasts {
  const paths = [...new Set(budgets?.map(({ org_id, app_id }) => clientPath(org_id, app_id)))];
  const some = paths.slice(0, CLIENTS_MAX);
  const found = useQuestion<[string, ForecastAnswer][]>(
    some.length === 0
      ? null
      : {
          key: `forecasts ${some.join(" ")}`,
          topics: [],
          everyMs: EVERY_MS,
          fetch: async (signal) => {
            const lists = await Promise.all(
              some.map((path) => ask<ForecastList>(`${path}/forecast`, signal)),
            );
            return lists.flatMap(({ forecasts }, index) =>
              forecasts.map((one): [string, ForecastAnswer] => [
                keyOf(some[index] ?? "", one),
                one,
              ]),
            );
          },
        },
  );
  const isKnown = found.data !== null || found.error !== null || some.length === 0;
  return useMemo(() => (isKnown ? new Map(found.data ?? []) : null), [found.data, isKnown]);
}

function keyOf(path: string, one: ForecastAnswer | ClientBudget): string {
  return `${path} ${one.kind} ${one.scope} ${one.name} ${JSON.stringify(one.tag ?? null)}`;
}

export function forecastOf(forecasts: Forecasts, budget: ClientBudget): ForecastAnswer | undefined {
  return forecasts?.get(keyOf(clientPath(budget.org_id, budget.app_id), budget));
}

/** The expected spend of a client at the end of its month. */
export function useMonthEnd(path: string | null): ForecastAnswer | null {
  const found = useQuestion<ForecastList>(
    path === null
      ? null
      : {
          key: `${path}/forecast`,
          topics: [],
          everyMs: EVERY_MS,
          fetch: (signal) => ask<ForecastList>(`${path}/forecast`, signal),
        },
  );
  const month = found.data?.forecasts.find((one) => one.kind === "TOTAL" && one.window === "MONTH");
  return month ?? null;
}

/** `$94.12`, or that it is not known; the bounds are in its title. */
export function Expected({ forecast }: { forecast: ForecastAnswer }): JSX.Element {
  const { expected_usd_micros: expected } = forecast;
  if (expected === null) return <span class="note">not known yet</span>;
  return (
    <data
      value={expected.toString()}
      title={`${usdExact(expected)} expected; ${boundsOf(forecast)}`}
    >
      {usdShort(expected, "up")}
    </data>
  );
}

/** The bounds in words; they are an estimate, so they are cut to cents. */
export function boundsOf({ low_usd_micros: low, high_usd_micros: high }: ForecastAnswer): string {
  if (low === null || high === null) return "too little is recorded for bounds";
  return `${usdShort(low, "down")} to ${usdShort(high, "up")} in four cases of five`;
}

/** When the limit will be spent, if that is expected before the window ends and was not so already. */
export function SpentAt(how: { forecast: ForecastAnswer; zone: Clock }): JSX.Element | null {
  const { forecast, zone } = how;
  const nowMs = useCell(now);
  const at = forecast.spent_at ?? forecast.spent_at_earliest;
  if (at === undefined || Date.parse(at) - nowMs < 1000) return null;
  return forecast.spent_at !== undefined ? (
    <Badge tone="over">
      runs out <Away at={at} zone={zone} />
    </Badge>
  ) : (
    <Badge tone="near" title="At the earliest: if the window ended at the upper bound">
      may run out <Away at={at} zone={zone} />
    </Badge>
  );
}
