/** Who spent what: a table that leads from organisations to apps, labels and tags. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { type Loaded, usePath } from "../api/queries";
import type { SpendAnswer, SpendSum } from "../api/wire";
import type { Row } from "../charts/series";
import { ratio } from "../format/money";
import { Count, Money } from "../parts/amounts";
import { Answer, Panel } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { tagKeysOf } from "../shell/filters";
import { type Change, linkTo } from "../state/route";
import { spendPath, type View } from "../state/view";

/** By what the rows are, and what the API groups by for it. */
interface Grouping {
  by: string;
  title: string;
  names: string[];
}

const COUNTERS = [
  ["Calls", "requests"],
  ["Errors", "errors"],
  ["Input", "input_tokens"],
  ["Output", "output_tokens"],
  ["Cache read", "cache_read_tokens"],
  ["Cache write", "cache_write_tokens"],
] as const;
const AMOUNTS = [
  ["Held", "held_usd_micros"],
  ["Unsettled", "unsettled_usd_micros"],
] as const;

/** How the table may be grouped, the widest first. */
export function groupingsOf(view: View): Grouping[] {
  const { org, app } = view.filters;
  const found: Grouping[] = [];
  if (org === undefined) found.push({ by: "org", title: "Organisation", names: ["org"] });
  if (app === undefined) {
    found.push({
      by: "app",
      title: "App",
      names: org === undefined ? ["org", "app"] : ["app"],
    });
  }
  found.push({ by: "label", title: "Label", names: ["label"] });
  const [filtered] = (view.filters.tag ?? "").split(":");
  for (const key of tagKeysOf(view)) {
    // Totals are kept by one tag at a time.
    if (!filtered || filtered === key) {
      found.push({ by: `tag:${key}`, title: `Tag ${key}`, names: [`tag:${key}`] });
    }
  }
  return found;
}

export function groupingOf(view: View): Grouping {
  const all = groupingsOf(view);
  const wanted = all.find(({ by }) => by === view.route.own.by) ?? all[0];
  return wanted ?? { by: "label", title: "Label", names: ["label"] };
}

export function useSpendRows(view: View): Loaded<SpendAnswer> & { reload: () => void } {
  const path = view.orgs === null ? null : spendPath(view, view.span, groupingOf(view).names);
  return usePath<SpendAnswer>(path, ["spend"]);
}

export function SpendTable({
  view,
  spend,
}: {
  view: View;
  spend: ReturnType<typeof useSpendRows>;
}): JSX.Element {
  const grouping = groupingOf(view);
  return (
    <Panel title="Who spent what" note={view.span.title}>
      <Answer of={spend} lines={8}>
        {(answer) => <Rows view={view} grouping={grouping} answer={answer} />}
      </Answer>
    </Panel>
  );
}

function Rows(how: { view: View; grouping: Grouping; answer: SpendAnswer }): JSX.Element {
  const { view, grouping, answer } = how;
  const most = answer.rows.reduce((most, row) => Math.max(most, Number(row.cost_usd_micros)), 0);
  const columns = useMemo(
    () => columnsOf(view, grouping, most),
    // The view is new at every drawing
    [grouping.by, most, view.filters, view.orgs],
  );
  return (
    <Table
      key={grouping.by}
      caption={`Spend by ${grouping.title.toLowerCase()}`}
      columns={columns}
      rows={answer.rows}
      keyOf={(row) => grouping.names.map((name) => row[name]).join("\n")}
      sorted={{ column: "Spent", isDown: true }}
      textOf={(row) => nameOf(view, grouping, row)}
      empty={{
        title: "Nothing was spent",
        text: "Not in this range, and not with these filters. Calls appear here as they are captured.",
      }}
      controls={<GroupChoice view={view} current={grouping} />}
      foot={<Total sum={answer.total} />}
    />
  );
}

function GroupChoice({ view, current }: { view: View; current: Grouping }): JSX.Element {
  return (
    <nav class="segments" aria-label="Group by">
      {groupingsOf(view).map(({ by, title }) => (
        <a
          key={by}
          href={linkTo({ own: { by } })}
          {...(by === current.by ? { "aria-current": "true" as const } : {})}
        >
          {title}
        </a>
      ))}
    </nav>
  );
}

function columnsOf(view: View, grouping: Grouping, most: number): Column<Row>[] {
  const first: Column<Row> = {
    name: grouping.title,
    isName: true,
    by: (row) => nameOf(view, grouping, row),
    show: (row) => <Name view={view} grouping={grouping} row={row} />,
    csv: grouping.names.map((name) => [name, (row) => String(row[name])]),
  };
  const amount = (row: Row, field: string) => (row[field] ?? 0) as number;
  return [
    first,
    {
      name: "Spent",
      isNumber: true,
      by: (row) => row.cost_usd_micros ?? 0,
      show: (row) => <Money micros={amount(row, "cost_usd_micros")} />,
      csv: [["cost_usd_micros", (row) => row.cost_usd_micros]],
    },
    {
      name: "Share",
      class: "share-cell",
      show: (row) => <Share value={ratio(amount(row, "cost_usd_micros"), most)} />,
    },
    ...COUNTERS.map(([name, field]): Column<Row> => ({
      name,
      isNumber: true,
      by: (row) => row[field] ?? 0,
      show: (row) => <Count value={amount(row, field)} />,
      csv: [[field, (row) => row[field]]],
      ...(field === "errors" ? { class: "errors" } : {}),
    })),
    ...AMOUNTS.map(([name, field]): Column<Row> => ({
      name,
      isNumber: true,
      by: (row) => row[field] ?? 0,
      show: (row) => <Money micros={amount(row, field)} />,
      csv: [[field, (row) => row[field]]],
    })),
  ];
}

/** How long a bar is; drawn, and said by the number beside it. */
function Share({ value }: { value: number }): JSX.Element {
  return (
    <span class="share" aria-hidden="true">
      <span style={{ width: `${Math.min(1, value) * 100}%` }} />
    </span>
  );
}

function nameOf(view: View, grouping: Grouping, row: Row): string {
  return grouping.names
    .map((name) =>
      name === "org" ? view.nameOf(String(row[name])) : String(row[name]) || unnamed(name),
    )
    .join(" / ");
}

function unnamed(name: string): string {
  return name === "app" ? "(no app)" : "(no tag)";
}

/** What a row is of, as a link to what it is made of. */
function Name({ view, grouping, row }: { view: View; grouping: Grouping; row: Row }): JSX.Element {
  const text = nameOf(view, grouping, row);
  const into = drillDown(grouping, row);
  const org = String(row.org ?? view.filters.org ?? "");
  const app = String(row.app ?? "");
  const isClient = grouping.by === "org" || (grouping.by === "app" && app !== "");
  return (
    <span class="name-cell">
      {into === null ? <span>{text}</span> : <a href={linkTo(into)}>{text}</a>}
      {isClient ? (
        <a
          class="details-link"
          href={linkTo({
            page: "client",
            filters: { org, app: app === "" ? undefined : app },
          })}
          aria-label={`Everything about ${text}`}
          title="Everything about it"
        >
          ↗
        </a>
      ) : null}
    </span>
  );
}

/** Where a row leads: the same table, narrowed to it and grouped by what is next. */
function drillDown(grouping: Grouping, row: Row): Change | null {
  const org = row.org === undefined ? {} : { org: String(row.org) };
  if (grouping.by === "org") return { filters: org, own: { by: undefined } };
  if (grouping.by === "app") {
    const app = String(row.app ?? "");
    return app === "" ? null : { filters: { ...org, app }, own: { by: undefined } };
  }
  if (grouping.by === "label") return { page: "log", filters: { label: String(row.label) } };
  return {
    filters: { tag: `${grouping.by.slice(4)}:${row[grouping.by]}` },
    own: { by: undefined },
  };
}

function Total({ sum }: { sum: SpendSum }): JSX.Element {
  return (
    <tr>
      <th scope="row">In all</th>
      <td class="number">
        <Money micros={sum.cost_usd_micros} />
      </td>
      <td class="share-cell" />
      {COUNTERS.map(([name, field]) => (
        <td key={name} class="number">
          <Count value={sum[field]} />
        </td>
      ))}
      {AMOUNTS.map(([name, field]) => (
        <td key={name} class="number">
          <Money micros={sum[field]} />
        </td>
      ))}
    </tr>
  );
}
