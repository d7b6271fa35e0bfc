/** JSON whose whole numbers stay exact. */

/**
 * A whole number of an answer: money in micro-dollars, tokens, calls. Beyond 2^53 it is a `bigint`,
 * so that adding to it by mistake fails instead of being almost right.
 */
export type Int = number | bigint;

/** Integers with fewer digits are exact as a `number`. */
const LONG = /\d{16}/;

type Reviver = (
  this: unknown,
  key: string,
  value: unknown,
  context?: { source?: string },
) => unknown;

/** Parse JSON. Whole numbers that a `number` can't hold become `bigint`; none is ever rounded. */
export function parseJson(text: string): unknown {
  return LONG.test(text) ? JSON.parse(text, keepExact as Reviver) : JSON.parse(text);
}

function keepExact(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value)) {
    return value;
  }
  if (context?.source === undefined) {
    throw new RangeError("This browser can't read numbers beyond 2^53 exactly; use a newer one.");
  }
  return BigInt(context.source);
}
