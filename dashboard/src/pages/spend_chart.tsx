/** Spend and tokens over time, each as a chart and as the rows behind it. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { usePath } from "../api/queries";
import type { SpendAnswer } from "../api/wire";
import {
  bucketsOf,
  type Row,
  rangeOf,
  type Stack,
  stackBy,
  stackFields,
  withRows,
} from "../charts/series";
import { bucketName, StackedBars } from "../charts/stacked_bars";
import { Count, Money } from "../parts/amounts";
import { Answer, Empty, Panel } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { linkTo } from "../state/route";
import { spendPath, type View } from "../state/view";

const TOKENS = [
  ["input", "input_tokens"],
  ["output", "output_tokens"],
  ["cache read", "cache_read_tokens"],
  ["cache write", "cache_write_tokens"],
] as const;

/** Spend over time, stacked by label or by something else. */
export function SpendChart({
  view,
  group = "label",
}: {
  view: View;
  group?: "label" | "org" | "app";
}): JSX.Element {
  const { span } = view;
  const path = view.orgs === null ? null : spendPath(view, span, [span.by, group]);
  const spend = usePath<SpendAnswer>(path, ["spend"]);
  const value = "cost_usd_micros";
  return (
    <ChartPanel
      view={view}
      title={`Spend by ${group}`}
      unit="usd"
      answer={spend}
      stackOf={(rows, buckets) =>
        named(stackBy(rows, buckets, { bucket: span.by, group, value }), view, group)
      }
      columns={[
        {
          name: group,
          by: (row) => String(row[group]),
          show: (row) => (group === "org" ? view.nameOf(String(row[group])) : String(row[group])),
          csv: [[group, (row) => String(row[group])]],
        },
        {
          name: "Spent",
          isNumber: true,
          by: (row) => row[value] ?? 0,
          show: (row) => <Money micros={(row[value] ?? 0) as number} />,
          csv: [[value, (row) => row[value]]],
        },
        {
          name: "Calls",
          isNumber: true,
          by: (row) => row.requests ?? 0,
          show: (row) => <Count value={(row.requests ?? 0) as number} />,
          csv: [["requests", (row) => row.requests]],
        },
      ]}
    />
  );
}

function named(stack: Stack, view: View, group: string): Stack {
  if (group !== "org") return stack;
  return {
    ...stack,
    series: stack.series.map((one) => ({ ...one, name: view.nameOf(one.name) })),
  };
}

/** Tokens over time, by kind. */
export function TokenChart({ view }: { view: View }): JSX.Element {
  const { span } = view;
  const path = view.orgs === null ? null : spendPath(view, span, [span.by]);
  const spend = usePath<SpendAnswer>(path, ["spend"]);
  return (
    <ChartPanel
      view={view}
      title="Tokens"
      unit="tokens"
      answer={spend}
      stackOf={(rows, buckets) => stackFields(rows, buckets, span.by, TOKENS)}
      columns={TOKENS.map(([name, field]) => ({
        name,
        isNumber: true,
        by: (row: Row) => row[field] ?? 0,
        show: (row: Row) => <Count value={(row[field] ?? 0) as number} />,
        csv: [[field, (row: Row) => row[field]]],
      }))}
    />
  );
}

function ChartPanel(how: {
  view: View;
  title: string;
  unit: "usd" | "tokens";
  answer: ReturnType<typeof usePath<SpendAnswer>>;
  stackOf: (rows: readonly Row[], buckets: Stack["buckets"]) => Stack;
  columns: readonly Column<Row>[];
}): JSX.Element {
  const { view } = how;
  const { span } = view;
  const zone = view.clock;
  const [asRows, setAsRows] = useState(false);
  const note = `${span.title}, by ${span.by} · ${span.by === "day" && view.zone === null ? "each organisation's own days" : zone}`;
  return (
    <Panel
      title={how.title}
      note={note}
      class="chart-panel"
      actions={
        <button type="button" aria-pressed={asRows} onClick={() => setAsRows(!asRows)}>
          Rows
        </button>
      }
    >
      <Answer of={how.answer} lines={6}>
        {({ rows }) =>
          asRows ? (
            <RowsBehind {...how} rows={rows} />
          ) : rows.length === 0 ? (
            <Empty title="Nothing was spent">Calls appear here as they are captured.</Empty>
          ) : (
            <Drawn {...how} rows={rows} zone={zone} />
          )
        }
      </Answer>
    </Panel>
  );
}

function Drawn(how: {
  view: View;
  title: string;
  unit: "usd" | "tokens";
  rows: readonly Row[];
  zone: string;
  stackOf: (rows: readonly Row[], buckets: Stack["buckets"]) => Stack;
}): JSX.Element {
  const { span } = how.view;
  const { rows, zone } = how;
  // The rows are those of the span
  const stack = useMemo(() => {
    const buckets = bucketsOf(span, zone, Date.now());
    return how.stackOf(rows, withRows(buckets, rows, span.by));
  }, [rows]);
  return (
    <StackedBars
      caption={`${how.title}, ${span.title}, by ${span.by}`}
      stack={stack}
      unit={how.unit}
      by={span.by}
      zone={zone}
      hrefOf={(bucket) => linkTo({ page: "log", filters: { range: rangeOf(bucket, span.by) } })}
    />
  );
}

function RowsBehind(how: {
  view: View;
  title: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
}): JSX.Element {
  const { by } = how.view.span;
  const zone = how.view.clock;
  const bucketOf = (row: Row): Stack["buckets"][number] => {
    const key = String(row[by]);
    return { key, atMs: Date.parse(key) };
  };
  const when: Column<Row> = {
    name: by,
    isName: true,
    by: (row) => String(row[by]),
    show: (row) => (
      <a href={linkTo({ page: "log", filters: { range: rangeOf(bucketOf(row), by) } })}>
        {bucketName(bucketOf(row), by, zone)}
      </a>
    ),
    csv: [[by, (row) => String(row[by])]],
  };
  return (
    <Table
      caption={how.title}
      columns={[when, ...how.columns]}
      rows={how.rows}
      keyOf={(row) => `${row[by]} ${row.label ?? ""} ${row.org ?? ""} ${row.app ?? ""}`}
      sorted={{ column: by, isDown: true }}
      empty={{ title: "Nothing was spent" }}
    />
  );
}
