/**
 * Money as text. Amounts are whole micro-dollars. Nothing here rounds an amount by itself: `usdParts`
 * shows every digit, and `usdShort` says in its name that it does not and takes the direction that
 * never makes an amount look better than it is.
 */
import type { Int } from "../api/json";

const MICROS_PER_USD = 1_000_000n;
const MICROS_PER_CENT = 10_000n;
const GROUPS = /\B(?=(\d{3})+$)/g;

/** An amount in dollars: what is read first, and the digits below a cent. */
export interface UsdParts {
  dollars: string;
  belowCent: string;
}

/** Every digit of an amount: `$1,234.56` and `7890`. */
export function usdParts(micros: Int): UsdParts {
  const amount = BigInt(micros);
  const size = amount < 0n ? -amount : amount;
  const whole = (size / MICROS_PER_USD).toString().replace(GROUPS, ",");
  const fraction = (size % MICROS_PER_USD).toString().padStart(6, "0");
  return {
    dollars: `${amount < 0n ? "−" : ""}$${whole}.${fraction.slice(0, 2)}`,
    belowCent: fraction.slice(2),
  };
}

/** Every digit of an amount in one text: `$1,234.567890`. */
export function usdExact(micros: Int): string {
  const { dollars, belowCent } = usdParts(micros);
  return dollars + belowCent;
}

/** How to round: up for a spent amount, down for a remaining one. */
export type Toward = "up" | "down";

/** An amount cut to cents (to whole dollars from a thousand on), never to look better than it is. */
export function usdShort(micros: Int, toward: Toward): string {
  const amount = BigInt(micros);
  const size = amount < 0n ? -amount : amount;
  const step = size >= 1_000n * MICROS_PER_USD ? MICROS_PER_USD : MICROS_PER_CENT;
  const parts = usdParts(roundTo(amount, step, toward));
  return step === MICROS_PER_USD ? parts.dollars.slice(0, -3) : parts.dollars;
}

function roundTo(amount: bigint, step: bigint, toward: Toward): bigint {
  const below = ((amount % step) + step) % step;
  if (below === 0n) return amount;
  return toward === "up" ? amount - below + step : amount - below;
}

/** How much of a whole, in per cent with one digit, never to look better than it is. */
export function percent(part: Int, whole: Int, toward: Toward): string {
  const all = BigInt(whole);
  if (all <= 0n) return BigInt(part) > 0n ? "over" : "–";
  const tenths = roundTo(BigInt(part) * 1000n * 1000n, all * 1000n, toward) / (all * 1000n);
  const size = tenths < 0n ? -tenths : tenths;
  return `${tenths < 0n ? "−" : ""}${(size / 10n).toString().replace(GROUPS, ",")}.${size % 10n} %`;
}

/** How much of a whole as a number from 0 on, for drawing. */
export function ratio(part: Int, whole: Int): number {
  const all = Number(whole);
  return all > 0 ? Number(part) / all : Number(part) > 0 ? Number.POSITIVE_INFINITY : 0;
}

/** Dollars that a person has typed, such as `1,250.5`, in micro-dollars; `null` if they are none. */
export function parseUsd(text: string): bigint | null {
  const found = /^\s*\$?\s*(\d{1,12}|\d{1,3}(?:,\d{3}){1,3})(?:\.(\d{1,6}))?\s*$/.exec(text);
  if (!found?.[1]) return null;
  const whole = BigInt(found[1].replaceAll(",", ""));
  return whole * MICROS_PER_USD + BigInt((found[2] ?? "").padEnd(6, "0"));
}

/** The text of an amount for an input, without a sign for dollars: `1250.50`. */
export function usdInput(micros: Int): string {
  const exact = usdExact(micros).replace(/[$,]/g, "");
  return exact.replace(/0{1,4}$/, "");
}
