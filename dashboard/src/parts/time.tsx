/**
 * Moments and how far away they are. `zone` is the page's one clock, `View.clock`, so that a moment
 * reads the same everywhere on the page. Its type refuses any other zone.
 */
import type { JSX } from "preact";
import { type Clock, clockTime, dateIn, duration, moment, momentLong } from "../format/time";
import { useCell } from "../state/cell";
import { now } from "../state/now";

/** `23 Jan 14:05`, and everything about it in its title. */
export function Moment({ at, zone }: { at: string; zone: Clock }): JSX.Element {
  const ms = Date.parse(at);
  return (
    <time dateTime={at} title={`${momentLong(zone, ms)} (${at})`}>
      {moment(zone, ms)}
    </time>
  );
}

/** `14:05:09`, with the day if that is not today. */
export function Instant({ at, zone }: { at: string; zone: Clock }): JSX.Element {
  const ms = Date.parse(at);
  const isToday = dateIn(zone, ms) === dateIn(zone, useCell(now));
  return (
    <time dateTime={at} title={`${momentLong(zone, ms)} (${at})`}>
      {isToday ? clockTime(zone, ms) : moment(zone, ms)}
    </time>
  );
}

/** `in 3 h 5 min`, or `3 min ago`. */
export function Away({ at, zone }: { at: string; zone: Clock }): JSX.Element {
  const ms = Date.parse(at);
  const left = ms - useCell(now);
  return (
    <time dateTime={at} title={momentLong(zone, ms)}>
      {left > 0 ? `in ${duration(left)}` : left > -1000 ? "now" : `${duration(-left)} ago`}
    </time>
  );
}
