/** Amounts and counts, as they are everywhere: every digit, aligned. */
import type { ComponentChildren, JSX } from "preact";
import type { Int } from "../api/json";
import { percent, type Toward, usdExact, usdParts } from "../format/money";
import { count, countShort } from "../format/numbers";

/** An amount to the micro-dollar; the digits below a cent are fainter. */
export function Money({ micros }: { micros: Int }): JSX.Element {
  const { dollars, belowCent } = usdParts(micros);
  return (
    <data
      class={classOf("money", micros)}
      value={micros.toString()}
      title={`${usdExact(micros)} USD`}
    >
      {dollars}
      <span class="faint">{belowCent}</span>
    </data>
  );
}

function classOf(kind: string, value: Int): string {
  if (Number(value) === 0) return `${kind} zero`; // nothing is said, and not shouted
  return Number(value) < 0 ? `${kind} below-zero` : kind;
}

/** A count with every digit. */
export function Count({ value }: { value: Int }): JSX.Element {
  return (
    <data class={classOf("count", value)} value={value.toString()}>
      {count(value)}
    </data>
  );
}

/** A count where there is little room; every digit is in its title. */
export function ShortCount({ value }: { value: Int }): JSX.Element {
  return (
    <data class="count" value={value.toString()} title={count(value)}>
      {countShort(value)}
    </data>
  );
}

/** How much of a whole; rounded so that it never looks better than it is. */
export function Percent(how: { part: Int; whole: Int; toward: Toward }): JSX.Element {
  return <span class="count">{percent(how.part, how.whole, how.toward)}</span>;
}

/** A number with its name, large. */
export function Tile(how: {
  name: string;
  children: ComponentChildren;
  note?: ComponentChildren;
  tone?: "plain" | "near" | "over";
  href?: string;
}): JSX.Element {
  return (
    <div class={`tile ${how.tone ?? "plain"}`}>
      <dt>{how.href === undefined ? how.name : <a href={how.href}>{how.name}</a>}</dt>
      <dd>{how.children}</dd>
      {how.note === undefined ? null : <dd class="note">{how.note}</dd>}
    </div>
  );
}
