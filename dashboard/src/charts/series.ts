/** From rows of an answer to what a chart draws. Pure. */
import type { Int } from "../api/json";
import { addDays, dateIn, HOUR_MS, isDate, startOfDay } from "../format/time";
import type { Span } from "../state/range";

/** A row of an answer: text under the names that it is grouped by, numbers under all others. */
export type Row = Readonly<Record<string, string | Int>>;

/** One kind of thing over time. */
export interface Series {
  name: string;
  /** As exact as the answer has it; `null` where there is no row, which is nothing. */
  values: (Int | null)[];
}

/** What a chart is drawn from. */
export interface Stack {
  /** When each bucket begins, and what the API calls it. */
  buckets: { atMs: number; key: string }[];
  series: Series[];
}

/** Buckets are bounded: that many hours are the most that the API tells apart. */
const BUCKETS_MAX = 31 * 24 + 1;

/** Every hour or day of a span, also those without a row. */
export function bucketsOf(span: Span, zone: string, nowMs: number): Stack["buckets"] {
  return span.by === "hour" ? hoursOf(span, zone, nowMs) : daysOf(span, zone, nowMs);
}

function hoursOf(span: Span, zone: string, nowMs: number): Stack["buckets"] {
  const firstMs = isDate(span.from) ? startOfDay(zone, span.from) : Date.parse(span.from);
  const endMs = isDate(span.to) ? startOfDay(zone, addDays(span.to, 1)) : Date.parse(span.to);
  const lastMs = Math.max(Math.min(endMs, Math.max(nowMs, firstMs) + 1), firstMs + 1);
  const buckets: Stack["buckets"] = [];
  // A zone half an hour off has its midnight inside an hour of UTC.
  for (let at = Math.floor(firstMs / HOUR_MS) * HOUR_MS; at < lastMs; at += HOUR_MS) {
    if (buckets.length >= BUCKETS_MAX) break;
    buckets.push({ atMs: at, key: `${new Date(at).toISOString().slice(0, 19)}Z` });
  }
  return buckets;
}

function daysOf(span: Span, zone: string, nowMs: number): Stack["buckets"] {
  const first = isDate(span.from) ? span.from : dateIn(zone, Date.parse(span.from));
  const last = isDate(span.to) ? span.to : dateIn(zone, Math.min(Date.parse(span.to) - 1, nowMs));
  const buckets: Stack["buckets"] = [];
  for (let day = first; day <= last && buckets.length < BUCKETS_MAX; day = addDays(day, 1)) {
    buckets.push({ atMs: Date.parse(`${day}T00:00:00Z`), key: day });
  }
  return buckets;
}

/** The buckets, and those that only rows know: where zones differ, a day may begin before the span. */
export function withRows(
  buckets: Stack["buckets"],
  rows: readonly Row[],
  name: "hour" | "day",
): Stack["buckets"] {
  const known = new Set(buckets.map(({ key }) => key));
  const keys = new Set(rows.map((row) => String(row[name])).filter((key) => !known.has(key)));
  const more = [...keys].map((key) => ({ key, atMs: Date.parse(key) }));
  return [...buckets, ...more].sort((one, other) => one.atMs - other.atMs);
}

/**
 * One series for each value of a group. Rows of the same bucket and value are one row of the answer,
 * because the answer is grouped by exactly these two.
 */
export function stackBy(
  rows: readonly Row[],
  buckets: Stack["buckets"],
  names: { bucket: "hour" | "day"; group: string; value: string },
): Stack {
  const index = new Map(buckets.map((bucket, at) => [bucket.key, at]));
  const found = new Map<string, (Int | null)[]>();
  for (const row of rows) {
    const at = index.get(String(row[names.bucket]));
    if (at === undefined) continue;
    const group = String(row[names.group] ?? "");
    let values = found.get(group);
    if (values === undefined) {
      values = buckets.map(() => null);
      found.set(group, values);
    }
    values[at] = row[names.value] as Int;
  }
  const series = [...found].map(([name, values]) => ({ name, values }));
  return { buckets, series: series.sort((one, other) => one.name.localeCompare(other.name)) };
}

/** One series for each field, in the order of the fields. */
export function stackFields(
  rows: readonly Row[],
  buckets: Stack["buckets"],
  bucket: "hour" | "day",
  fields: readonly (readonly [string, string])[],
): Stack {
  const byKey = new Map(rows.map((row) => [String(row[bucket]), row]));
  return {
    buckets,
    series: fields.map(([name, field]) => ({
      name,
      values: buckets.map(({ key }) => (byKey.get(key)?.[field] ?? null) as Int | null),
    })),
  };
}

/** When a bucket ends, for a link to the rows in it. */
export function rangeOf(bucket: Stack["buckets"][number], by: "hour" | "day"): string {
  if (by === "day") return `${bucket.key}..${bucket.key}`;
  const end = new Date(bucket.atMs + HOUR_MS).toISOString().slice(0, 19);
  return `${bucket.key}..${end}Z`;
}
