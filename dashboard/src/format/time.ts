/**
 * Moments and days as text, in the zone of the organisation that is shown. Where organisations of
 * several zones are shown, hours are those of UTC.
 */

/** The one zone in which a page shows moments; `View.clock` is the only one that there is. */
export type Clock = string & { readonly isClock: true };

export const HOUR_MS = 3_600_000;
export const DAY_MS = 24 * HOUR_MS;

const formats = new Map<string, Intl.DateTimeFormat>();

function format(
  zone: string,
  key: string,
  options: Intl.DateTimeFormatOptions,
): Intl.DateTimeFormat {
  const name = `${zone} ${key}`;
  let found = formats.get(name);
  if (found === undefined) {
    found = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", ...options });
    formats.set(name, found);
  }
  return found;
}

function parts(zone: string, atMs: number): Record<string, string> {
  const made = format(zone, "parts", {
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  }).formatToParts(atMs);
  return Object.fromEntries(made.map((part) => [part.type, part.value]));
}

/** The date of a moment in a zone: `2026-01-23`. */
export function dateIn(zone: string, atMs: number): string {
  const part = parts(zone, atMs);
  return `${part.year}-${part.month}-${part.day}`;
}

/** A date so many days later. */
export function addDays(date: string, days: number): string {
  return new Date(Date.parse(`${date}T00:00:00Z`) + days * DAY_MS).toISOString().slice(0, 10);
}

/** How many days a range of dates has, with both ends. */
export function daysBetween(first: string, last: string): number {
  return (
    Math.round((Date.parse(`${last}T00:00:00Z`) - Date.parse(`${first}T00:00:00Z`)) / DAY_MS) + 1
  );
}

/** Whether a text is a date that exists. */
export function isDate(text: string): boolean {
  if (!/^\d{4}-\d\d-\d\d$/.test(text)) return false;
  const at = Date.parse(`${text}T00:00:00Z`);
  return !Number.isNaN(at) && new Date(at).toISOString().slice(0, 10) === text;
}

/** The first moment of a date in a zone. */
export function startOfDay(zone: string, date: string): number {
  const utc = Date.parse(`${date}T00:00:00Z`);
  // What a clock of the zone shows at a moment says how far it is off, at about that moment.
  let at = utc;
  for (let turn = 0; turn < 3; turn += 1) at = utc - offsetMs(zone, at);
  // Where midnight does not exist, the day begins later; never on the day before.
  while (dateIn(zone, at) < date) at += HOUR_MS / 4;
  return at;
}

function offsetMs(zone: string, atMs: number): number {
  const part = parts(zone, atMs);
  const shown = Date.parse(
    `${part.year}-${part.month}-${part.day}T${part.hour}:${part.minute}:${part.second}Z`,
  );
  return shown - Math.floor(atMs / 1000) * 1000;
}

/** `14:05:09` in a zone. */
export function clockTime(zone: string, atMs: number): string {
  const part = parts(zone, atMs);
  return `${part.hour}:${part.minute}:${part.second}`;
}

/** `23 Jan 14:05` in a zone. */
export function moment(zone: string, atMs: number): string {
  return format(zone, "moment", {
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
  })
    .format(atMs)
    .replace(",", "");
}

/** `23 Jan 2026, 14:05:09 America/New_York`. */
export function momentLong(zone: string, atMs: number): string {
  const text = format(zone, "long", {
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  }).format(atMs);
  return `${text} ${zone}`;
}

/** `Fri 23 Jan`. */
export function dayName(date: string): string {
  return format("UTC", "day", { weekday: "short", day: "numeric", month: "short" })
    .format(Date.parse(`${date}T00:00:00Z`))
    .replace(",", "");
}

/** How long, by its two largest units: `3 d 4 h`, `12 min`, `8 s`. */
export function duration(ms: number): string {
  const secs = Math.max(0, Math.floor(ms / 1000));
  const units: [number, string][] = [
    [Math.floor(secs / 86_400), "d"],
    [Math.floor(secs / 3600) % 24, "h"],
    [Math.floor(secs / 60) % 60, "min"],
    [secs % 60, "s"],
  ];
  const first = units.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0 s";
  return units
    .slice(first, first + (first < 2 ? 2 : 1))
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}
