/** Counts as text. */
import type { Int } from "../api/json";

const GROUPS = /\B(?=(\d{3})+$)/g;
const STEPS: readonly (readonly [number, string])[] = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "k"],
];

/** Every digit of a count: `1,234,567`. */
export function count(value: Int): string {
  const text = value.toString();
  return text.startsWith("-")
    ? `−${text.slice(1).replace(GROUPS, ",")}`
    : text.replace(GROUPS, ",");
}

/** A count for where there is little room: `1.2M`. */
export function countShort(value: Int): string {
  const number = Number(value);
  for (const [size, unit] of STEPS) {
    if (Math.abs(number) >= size) {
      const shown = number / size;
      return `${Math.abs(shown) >= 100 ? Math.round(shown) : Math.round(shown * 10) / 10}${unit}`;
    }
  }
  return count(value);
}

/** `one call`, `two calls`. */
export function plural(value: Int, one: string, many: string = `${one}s`): string {
  return `${count(value)} ${Number(value) === 1 ? one : many}`;
}
