/** Which label was recommended when, and why it changed. */
import type { JSX } from "preact";
import { useList } from "../api/queries";
import type { FlipAnswer } from "../api/wire";
import { colorOf } from "../charts/colors";
import { type Clock, duration, isDate, moment, startOfDay, addDays } from "../format/time";
import { Money } from "../parts/amounts";
import { Answer, Badge, Panel } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { Moment } from "../parts/time";
import { useCell } from "../state/cell";
import { now } from "../state/now";
import type { Span } from "../state/range";
import { type Lane, lanesOf, type Segment } from "./timeline";

const REASONS: Readonly<Record<FlipAnswer["reason"], [string, "near" | "info" | "good"]>> = {
  QUOTA_EXCEEDED: ["quota spent", "near"],
  QUOTA_RAISED: ["quota raised", "good"],
  MANUAL_OVERRIDE: ["set by hand", "info"],
  OVERRIDE_CLEARED: ["override cleared", "good"],
};

export function Flips(how: {
  path: string;
  zone: Clock;
  span: Span;
  order: string[];
}): JSX.Element {
  const { span, zone } = how;
  const query = new URLSearchParams({ from: span.from, to: span.to });
  const flips = useList<FlipAnswer>(`${how.path}/flips?${query}`, "flips", ["flips"]);
  const nowMs = useCell(now);
  const fromMs = isDate(span.from) ? startOfDay(zone, span.from) : Date.parse(span.from);
  const endMs = isDate(span.to) ? startOfDay(zone, addDays(span.to, 1)) : Date.parse(span.to);
  const toMs = Math.max(fromMs + 1, Math.min(nowMs, endMs));
  return (
    <Panel title="Fallback" note={`${span.title} · the recommended label, and why it changed`}>
      <Answer of={flips}>
        {({ rows }) => (
          <>
            {lanesOf(rows, how.order[0] ?? "", { fromMs, toMs }).map((lane) => (
              <Drawn key={lane.app ?? ""} lane={lane} zone={zone} fromMs={fromMs} toMs={toMs} />
            ))}
            {rows.length === 0 ? null : (
              <p class="axis note" aria-hidden="true">
                <span>{moment(zone, fromMs)}</span>
                <span>{moment(zone, toMs)}</span>
              </p>
            )}
            <Table
              caption="Flips and overrides"
              columns={columnsOf(zone)}
              rows={rows}
              keyOf={(one) => `${one.at} ${one.app_id} ${one.to_label}`}
              sorted={{ column: "When", isDown: true }}
              empty={{
                title: "No fallback",
                text: `${how.order[0] ?? "The first label"} was recommended all the time.`,
              }}
            />
          </>
        )}
      </Answer>
    </Panel>
  );
}

/** One lane; the table beneath says the same. */
function Drawn(how: { lane: Lane; zone: Clock; fromMs: number; toMs: number }): JSX.Element {
  const { lane, fromMs, toMs, zone } = how;
  const share = (segment: Segment): string =>
    `${((segment.toMs - segment.fromMs) / (toMs - fromMs)) * 100}%`;
  return (
    <div class="lane" aria-hidden="true">
      <span class="lane-name">{lane.app ?? "organisation"}</span>
      <span class="lane-bar">
        {lane.segments.map((one) => (
          <span
            key={one.fromMs}
            class={`s${colorOf(one.label)}`}
            style={{ width: share(one) }}
            title={`${one.label}, ${moment(zone, one.fromMs)} to ${moment(zone, one.toMs)} (${duration(one.toMs - one.fromMs)})`}
          >
            <span>{one.label}</span>
          </span>
        ))}
      </span>
    </div>
  );
}

function columnsOf(zone: Clock): Column<FlipAnswer>[] {
  return [
    {
      name: "When",
      isName: true,
      by: (one) => one.at,
      show: (one) => <Moment at={one.at} zone={zone} />,
      csv: [["at", (one) => one.at]],
    },
    {
      name: "Whose",
      by: (one) => one.app_id ?? "",
      show: (one) => one.app_id ?? "the organisation",
      csv: [["app_id", (one) => one.app_id]],
    },
    {
      name: "From → to",
      show: (one) => `${one.from_label ?? "as ordered"} → ${one.to_label ?? "as quotas decide"}`,
      csv: [
        ["from_label", (one) => one.from_label],
        ["to_label", (one) => one.to_label],
      ],
    },
    {
      name: "Why",
      by: (one) => one.reason,
      show: (one) => <Badge tone={REASONS[one.reason][1]}>{REASONS[one.reason][0]}</Badge>,
      csv: [["reason", (one) => one.reason]],
    },
    {
      name: "Given up",
      show: (one) => (
        <span class="two-lines">
          {one.given_up.map((label) => (
            <span key={label.label}>
              {label.label}: <Money micros={label.spend_usd_micros} /> of{" "}
              <Money micros={label.quota_usd_micros} />
            </span>
          ))}
        </span>
      ),
      csv: [["given_up", (one) => one.given_up.map(({ label }) => label).join(" ")]],
    },
    {
      name: "Until",
      by: (one) => one.until,
      show: (one) => <Moment at={one.until} zone={zone} />,
      csv: [["until", (one) => one.until]],
    },
  ];
}
