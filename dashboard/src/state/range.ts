/**
 * The time range: a name such as `7d`, or two dates. Days are those of the organisation that is
 * looked at, hours those of UTC.
 */
import { addDays, dateIn, daysBetween, HOUR_MS, isDate } from "../format/time";

export const PRESETS = {
  today: "Today",
  "24h": "24 hours",
  "7d": "7 days",
  "30d": "30 days",
  month: "This month",
} as const;
export type Preset = keyof typeof PRESETS;
export const DEFAULT_RANGE: Preset = "today";

/** The longest range that the API tells apart by hour, and where a chart still has room for them. */
const HOURLY_DAYS_MAX = 3;
const DAYS_MAX = 400;

/** What a range is now: the ends as the API takes them, and by what a chart tells time apart. */
export interface Span {
  from: string;
  to: string;
  by: "hour" | "day";
  /** In words, such as `today` or `1 Jan to 7 Jan`. */
  title: string;
}

export function isPreset(text: string): text is Preset {
  return Object.hasOwn(PRESETS, text);
}

/** Two dates, `2026-01-01..2026-01-07`, or two full hours; `null` if the text is neither. */
export function customEnds(text: string): [string, string] | null {
  const [first, last, ...more] = text.split("..");
  if (first === undefined || last === undefined || more.length > 0) return null;
  if (isDate(first) && isDate(last)) {
    const days = daysBetween(first, last);
    return days >= 1 && days <= DAYS_MAX ? [first, last] : null;
  }
  return isHour(first) && isHour(last) && first < last ? [first, last] : null;
}

function isHour(text: string): boolean {
  return /^\d{4}-\d\d-\d\dT\d\d:00:00Z$/.test(text) && !Number.isNaN(Date.parse(text));
}

/** Whether a text in the address is a range. */
export function isRange(text: string): boolean {
  return isPreset(text) || customEnds(text) !== null;
}

/**
 * What a range is at that moment, in that zone. Where organisations of several zones are seen at once
 * (`zone` is `null`), their days differ, so a named range is a range of hours, from UTC's midnight on.
 */
export function spanOf(range: string, zone: string | null, nowMs: number): Span {
  const ends = customEnds(range);
  if (ends !== null) {
    const [from, to] = ends;
    if (!isDate(from)) {
      const hours = (Date.parse(to) - Date.parse(from)) / HOUR_MS;
      const title =
        hours === 1 ? `the hour from ${hourTitle(from)}` : `${hourTitle(from)} to ${hourTitle(to)}`;
      return { from, to, by: hours <= HOURLY_DAYS_MAX * 24 ? "hour" : "day", title };
    }
    const by = daysBetween(from, to) <= HOURLY_DAYS_MAX ? "hour" : "day";
    return { from, to, by, title: from === to ? from : `${from} to ${to}` };
  }
  const end = (Math.floor(nowMs / HOUR_MS) + 1) * HOUR_MS;
  if (range === "24h") {
    return { from: hour(end - 24 * HOUR_MS), to: hour(end), by: "hour", title: "24 hours" };
  }
  const today = dateIn(zone ?? "UTC", nowMs);
  const [first, title] = firstDay(range, today);
  const by = first === today ? "hour" : "day";
  if (zone !== null) return { from: first, to: today, by, title };
  return { from: `${first}T00:00:00Z`, to: hour(end), by, title: `${title} (UTC)` };
}

function firstDay(range: string, today: string): [string, string] {
  switch (range) {
    case "7d":
      return [addDays(today, -6), "7 days"];
    case "30d":
      return [addDays(today, -29), "30 days"];
    case "month":
      return [`${today.slice(0, 8)}01`, "this month"];
    default:
      return [today, "today"];
  }
}

/** The full hour of a moment, as the API writes it. */
export function hour(atMs: number): string {
  return `${new Date(Math.floor(atMs / HOUR_MS) * HOUR_MS).toISOString().slice(0, 19)}Z`;
}

function hourTitle(text: string): string {
  return `${text.slice(0, 10)} ${text.slice(11, 16)} UTC`;
}
