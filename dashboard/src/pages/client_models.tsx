/** The labels of a client: settled and held amounts, and what is left of the quota. */
import type { JSX } from "preact";
import { type Loaded, usePath } from "../api/queries";
import type { AggregateAnswer, ModelAggregate, SpendAnswer } from "../api/wire";
import { colorOf } from "../charts/colors";
import type { Row } from "../charts/series";
import { ratio } from "../format/money";
import { dateIn } from "../format/time";
import { Count, Money, Percent } from "../parts/amounts";
import { Answer, Badge, Panel } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { linkTo } from "../state/route";
import { spendPath, type View } from "../state/view";

/** A label with what is known of it today. */
interface Label {
  name: string;
  day: ModelAggregate | undefined;
  row: Row | undefined;
  isCurrent: boolean;
}

const TONES: Readonly<Record<string, "good" | "near" | "over">> = {
  NORMAL: "good",
  TIGHT: "near",
  EXCEEDED: "over",
};

export function Models(how: {
  view: View;
  path: string;
  today: Loaded<AggregateAnswer> & { reload: () => void };
}): JSX.Element {
  const { view } = how;
  const zone = view.zoneOf(view.filters.org ?? "");
  const date = how.today.data?.date ?? dateIn(zone, Date.now());
  const day = { from: date, to: date, by: "hour" as const, title: "today" };
  const spend = usePath<SpendAnswer>(spendPath(view, day, ["label"]), ["spend"]);
  return (
    <Panel title="Settled and held today" note={`${date}, a day of ${zone}`}>
      <Answer of={how.today}>
        {(today) => (
          <Answer of={spend}>{({ rows }) => <Labels labels={labelsOf(today, rows)} />}</Answer>
        )}
      </Answer>
    </Panel>
  );
}

function labelsOf(today: AggregateAnswer, rows: readonly Row[]): Label[] {
  const names = new Set([...Object.keys(today.models), ...rows.map((row) => String(row.label))]);
  return [...names].map((name) => ({
    name,
    day: today.models[name],
    row: rows.find((row) => row.label === name),
    isCurrent: today.current_active_model === name,
  }));
}

function amount({ row }: Label, field: string): number {
  return (row?.[field] ?? 0) as number;
}

function Labels({ labels }: { labels: Label[] }): JSX.Element {
  const whole = Math.max(
    1,
    ...labels.map((one) =>
      ["cost_usd_micros", "unsettled_usd_micros", "held_usd_micros"].reduce(
        (sum, field) => sum + Number(amount(one, field)),
        0,
      ),
    ),
  );
  const money = (name: string, field: string): Column<Label> => ({
    name,
    isNumber: true,
    by: (one) => amount(one, field),
    show: (one) => <Money micros={amount(one, field)} />,
    csv: [[field, (one) => amount(one, field)]],
  });
  const columns: Column<Label>[] = [
    {
      name: "Label",
      isName: true,
      by: (one) => one.name,
      show: (one) => (
        <span class="name-cell">
          <span class={`dot s${colorOf(one.name)}`} />
          <a href={linkTo({ page: "log", filters: { label: one.name } })}>{one.name}</a>
          {one.isCurrent ? <Badge tone="info">now</Badge> : null}
        </span>
      ),
      csv: [["label", (one) => one.name]],
    },
    money("Settled", "cost_usd_micros"),
    money("Unsettled", "unsettled_usd_micros"),
    money("Held", "held_usd_micros"),
    {
      name: "Beside each other",
      class: "share-cell",
      show: (one) => <Beside one={one} whole={whole} />,
    },
    {
      name: "Quota of the day",
      isNumber: true,
      by: (one) => one.day?.quota_usd_micros ?? -1,
      show: (one) => (one.day === undefined ? "–" : <Money micros={one.day.quota_usd_micros} />),
      csv: [["quota_usd_micros", (one) => one.day?.quota_usd_micros]],
    },
    {
      name: "Used",
      isNumber: true,
      by: (one) =>
        one.day === undefined
          ? -1
          : ratio(amount(one, "cost_usd_micros"), one.day.quota_usd_micros),
      show: (one) =>
        one.day === undefined ? (
          "–"
        ) : (
          <Percent
            part={amount(one, "cost_usd_micros")}
            whole={one.day.quota_usd_micros}
            toward="up"
          />
        ),
    },
    {
      name: "State",
      by: (one) => one.day?.quota_status ?? "",
      show: (one) =>
        one.day === undefined ? null : (
          <Badge tone={TONES[one.day.quota_status] ?? "plain"}>
            {one.day.quota_status.toLowerCase()}
          </Badge>
        ),
      csv: [["quota_status", (one) => one.day?.quota_status]],
    },
    {
      name: "Calls",
      isNumber: true,
      by: (one) => amount(one, "requests"),
      show: (one) => <Count value={amount(one, "requests")} />,
      csv: [["requests", (one) => amount(one, "requests")]],
    },
    {
      name: "Model",
      by: (one) => one.day?.bedrock_model_id ?? "",
      show: (one) => <span class="mono">{one.day?.bedrock_model_id ?? ""}</span>,
      csv: [["bedrock_model_id", (one) => one.day?.bedrock_model_id]],
    },
  ];
  return (
    <Table
      caption="Settled and held by label"
      columns={columns}
      rows={labels}
      keyOf={(one) => one.name}
      empty={{ title: "No label has a quota" }}
    />
  );
}

/** Settled, unsettled and held as one bar; said by the numbers beside it. */
function Beside({ one, whole }: { one: Label; whole: number }): JSX.Element {
  const width = (field: string) => ({ width: `${(Number(amount(one, field)) / whole) * 100}%` });
  return (
    <span class="budget-bar fine" aria-hidden="true">
      <span class="spent" style={width("cost_usd_micros")} />
      <span class="unsettled" style={width("unsettled_usd_micros")} />
      <span class="held" style={width("held_usd_micros")} />
    </span>
  );
}
