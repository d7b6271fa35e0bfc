/** The state of a budget: over, near or fine, and its bar. */
import type { JSX } from "preact";
import type { ClientBudget } from "../api/wire";
import { percent, ratio } from "../format/money";
import { Badge } from "../parts/panel";

export type Health = "over" | "near" | "fine";

/** From which share on a budget is near its end. */
const NEAR = 0.8;

/** What is taken of a budget: spent, charged and unsettled, or held. */
export function takenRatio(budget: ClientBudget): number {
  return ratio(
    BigInt(budget.limit_usd_micros) - BigInt(budget.remaining_usd_micros),
    budget.limit_usd_micros,
  );
}

export function healthOf(budget: ClientBudget): Health {
  if (Number(budget.remaining_usd_micros) <= 0) return "over";
  return takenRatio(budget) >= NEAR ? "near" : "fine";
}

const TONES = { over: "over", near: "near", fine: "good" } as const;

export function HealthBadge({ budget }: { budget: ClientBudget }): JSX.Element {
  const health = healthOf(budget);
  return <Badge tone={TONES[health]}>{health === "over" ? "spent" : health}</Badge>;
}

/** Spent, unsettled and held beside each other, of the limit. */
export function BudgetBar({ budget, name }: { budget: ClientBudget; name: string }): JSX.Element {
  const { limit_usd_micros: limit } = budget;
  const taken = BigInt(limit) - BigInt(budget.remaining_usd_micros);
  const whole = Math.max(Number(limit), Number(taken), 1);
  const width = (part: number | bigint) => ({
    width: `${(Math.max(0, Number(part)) / whole) * 100}%`,
  });
  return (
    <span
      class={`budget-bar ${healthOf(budget)}`}
      role="meter"
      aria-label={name}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.min(100, Math.ceil(takenRatio(budget) * 100))}
      aria-valuetext={`${percent(taken, limit, "up")} taken`}
    >
      <span class="spent" style={width(budget.spent_usd_micros)} />
      <span class="unsettled" style={width(budget.unsettled_usd_micros)} />
      <span class="held" style={width(budget.held_usd_micros)} />
    </span>
  );
}

/** The name of a budget, with its owner. */
export function budgetName(budget: ClientBudget): string {
  const owner =
    budget.app_name === undefined ? budget.org_name : `${budget.org_name} / ${budget.app_name}`;
  return `${owner}: ${budget.name}${tagOf(budget)}`;
}

/** The worst first. */
export function worstFirst(budgets: readonly ClientBudget[]): ClientBudget[] {
  return [...budgets].sort((one, other) => takenRatio(other) - takenRatio(one));
}

/** Of a budget for each value of a tag: which value, in brackets. */
export function tagOf({ tag }: ClientBudget): string {
  return Object.entries(tag ?? {})
    .map(([key, value]) => (value === "" ? ` (no ${key})` : ` (${key}: ${value})`))
    .join("");
}
