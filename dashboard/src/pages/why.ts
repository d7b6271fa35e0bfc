/** Reads the reasons of a denial, which come as JSON of several shapes. Pure. */
import type { Int } from "../api/json";

/** One thing that stood in the way. */
export interface Obstacle {
  /** `BUDGET`, `QUOTA`, `LIMIT` or `FROZEN`. */
  kind: string;
  name: string;
  scope: string | null;
  label: string | null;
  /** Money for budgets and quotas, tokens or calls for limits. */
  needed: Int | null;
  remaining: Int | null;
  resetsAt: string | null;
  retryAfterMs: Int | null;
  /** Whether waiting does not help: it is more than there can ever be. */
  isNever: boolean;
}

/** A label that was looked at. */
export interface Considered {
  label: string;
  outcome: string;
  because: string | null;
}

export interface Why {
  detail: string | null;
  obstacles: Obstacle[];
  considered: Considered[];
  /** How far quotas are used, where none had room. */
  models: { label: string; quotaPct: string }[];
  tags: [string, string][];
  /** Fields that were too large to be recorded. */
  leftOut: string[];
}

/** Read it. What is not there, or is not as it should be, is left out: nothing here is made up. */
export function readWhy(example: Readonly<Record<string, unknown>>): Why {
  const denied = list(example["denied_by"]).map(obstacleOf);
  const violations = list(example["violations"]).map(violationOf);
  return {
    detail: text(example["detail"]),
    obstacles: [...denied, ...violations],
    considered: list(example["considered"]).map((one) => ({
      label: text(one["label"]) ?? "",
      outcome: text(one["outcome"]) ?? "",
      because: text(one["because"]),
    })),
    models: entries(example["models"]).map(([label, one]) => ({
      label,
      quotaPct: String((one as Record<string, unknown> | null)?.["quota_pct"] ?? ""),
    })),
    tags: entries(example["tags"]).map(([key, value]) => [key, String(value)]),
    leftOut: Array.isArray(example["left_out"]) ? example["left_out"].map(String) : [],
  };
}

/** Whether the call had that tag: `KEY:VALUE`, or `KEY:` if it had none or an empty one. */
export function hasTag({ tags }: Pick<Why, "tags">, wanted: string): boolean {
  const end = wanted.indexOf(":");
  const value = tags.find(([key]) => key === wanted.slice(0, end))?.[1] ?? "";
  return value === wanted.slice(end + 1);
}

function obstacleOf(one: Record<string, unknown>): Obstacle {
  return {
    kind: text(one["kind"]) ?? "",
    name: text(one["name"]) ?? "",
    scope: text(one["scope"]),
    label: text(one["label"]),
    needed: whole(one["needed"]),
    remaining: whole(one["remaining"]),
    resetsAt: text(one["resets_at"]),
    retryAfterMs: whole(one["retry_after_ms"]),
    isNever: one["never"] === true,
  };
}

/** What `POST /limits/acquire` says of a limit. */
function violationOf(one: Record<string, unknown>): Obstacle {
  return {
    kind: "LIMIT",
    name: text(one["limit"]) ?? "",
    scope: text(one["scope"]),
    label: text(one["resource"]),
    needed: whole(one["requested"]),
    remaining: whole(one["available"]),
    resetsAt: null,
    retryAfterMs: whole(one["retry_after_ms"]),
    isNever: one["never"] === true,
  };
}

function list(value: unknown): Record<string, unknown>[] {
  if (!Array.isArray(value)) return [];
  return value.filter((one) => typeof one === "object" && one !== null);
}

function entries(value: unknown): [string, unknown][] {
  return typeof value === "object" && value !== null ? Object.entries(value) : [];
}

function text(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function whole(value: unknown): Int | null {
  return typeof value === "bigint" || Number.isInteger(value) ? (value as Int) : null;
}

/** Whether what an obstacle counts is money. */
export function isMoney({ kind }: Obstacle): boolean {
  return kind === "BUDGET" || kind === "QUOTA";
}
