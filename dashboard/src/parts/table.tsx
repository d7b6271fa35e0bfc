/** Tables that sort, filter, page and can be taken along as CSV. */
import { type ComponentChildren, Fragment, type JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { type CsvCell, csvText, saveFile } from "../format/csv";
import { count, plural } from "../format/numbers";
import { Empty } from "./panel";

export interface Column<T> {
  /** Its name in the heading. */
  name: string;
  /** What is sorted by. Without it the column can't be sorted. */
  by?: (row: T) => string | number | bigint;
  show: (row: T) => ComponentChildren;
  /** Names and values in CSV. Without it the CSV lacks the column. */
  csv?: readonly (readonly [string, (row: T) => CsvCell])[];
  /** Whether it is a number, aligned right. */
  isNumber?: boolean;
  /** Whether a row is named by it. */
  isName?: boolean;
  class?: string;
}

interface Order {
  column: string;
  isDown: boolean;
}

const ROWS_SHOWN = 100;

export function Table<T>(how: {
  /** What it is a table of: for screen readers, and for the name of the CSV. */
  caption: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  keyOf: (row: T) => string;
  /** By which column it is sorted at first; downwards unless it says otherwise. */
  sorted?: Order;
  /** The text of a row that the filter looks into; without it there is none. */
  textOf?: (row: T) => string;
  /** What is said if there are no rows at all. */
  empty: { title: string; text?: ComponentChildren };
  /** Beside the filter. */
  controls?: ComponentChildren;
  /** Under the rows: what they come to, as the service says. */
  foot?: ComponentChildren;
  rowClass?: (row: T) => string;
  /** What is shown under a row, as wide as the table. */
  below?: (row: T) => ComponentChildren;
}): JSX.Element {
  const [order, setOrder] = useState<Order | undefined>(how.sorted);
  const [wanted, setWanted] = useState("");
  const [shown, setShown] = useState(ROWS_SHOWN);
  const { textOf } = how;

  const rows = useMemo(() => {
    const needle = wanted.trim().toLowerCase();
    const found =
      needle === "" || textOf === undefined
        ? [...how.rows]
        : how.rows.filter((row) => textOf(row).toLowerCase().includes(needle));
    const by = how.columns.find((column) => column.name === order?.column)?.by;
    if (by !== undefined) found.sort((one, other) => compare(by(one), by(other)));
    if (by !== undefined && order?.isDown) found.reverse();
    return found;
  }, [how.rows, how.columns, order, wanted, textOf]);

  const sortBy = (column: Column<T>): void => {
    const isDown = order?.column === column.name ? !order.isDown : column.isNumber === true;
    setOrder({ column: column.name, isDown });
  };
  const save = (): void => {
    const columns = how.columns.flatMap(({ csv }) => csv ?? []);
    const lines = rows.map((row) => columns.map(([, value]) => value(row)));
    saveFile(
      `${how.caption.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.csv`,
      csvText(
        columns.map(([name]) => name),
        lines,
      ),
    );
  };

  return (
    <div class="table">
      <div class="table-bar">
        {how.controls}
        {textOf === undefined ? null : (
          <input
            type="search"
            class="search"
            placeholder="Filter rows"
            aria-label={`Filter ${how.caption}`}
            value={wanted}
            onInput={(event) => {
              setWanted(event.currentTarget.value);
              setShown(ROWS_SHOWN);
            }}
          />
        )}
        <span class="note" role="status">
          {wanted === ""
            ? plural(rows.length, "row")
            : `${count(rows.length)} of ${count(how.rows.length)} rows`}
        </span>
        <button
          type="button"
          onClick={save}
          disabled={rows.length === 0}
          title="Save these rows as CSV"
        >
          CSV
        </button>
      </div>
      {how.rows.length === 0 ? (
        <Empty title={how.empty.title}>{how.empty.text}</Empty>
      ) : rows.length === 0 ? (
        <Empty title="No row matches">Try another text.</Empty>
      ) : (
        <div class="scroll" role="group" tabIndex={0} aria-label={how.caption}>
          <table>
            <caption>{how.caption}</caption>
            <thead>
              <tr>
                {how.columns.map((column) => (
                  <Heading key={column.name} column={column} order={order} sortBy={sortBy} />
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, shown).map((row) => {
                const below = how.below?.(row) ?? null;
                const key = how.keyOf(row);
                const cells = (
                  <tr key={key} class={how.rowClass?.(row) ?? ""}>
                    {how.columns.map((column) =>
                      column.isName ? (
                        <th key={column.name} scope="row" class={classOf(column)}>
                          {column.show(row)}
                        </th>
                      ) : (
                        <td key={column.name} class={classOf(column)}>
                          {column.show(row)}
                        </td>
                      ),
                    )}
                  </tr>
                );
                if (below === null) return cells;
                return (
                  <Fragment key={key}>
                    {cells}
                    <tr class="below">
                      <td colSpan={how.columns.length}>{below}</td>
                    </tr>
                  </Fragment>
                );
              })}
            </tbody>
            {how.foot === undefined ? null : <tfoot>{how.foot}</tfoot>}
          </table>
        </div>
      )}
      {rows.length > shown ? (
        <button type="button" class="more" onClick={() => setShown(shown * 4)}>
          Show more of {count(rows.length)}
        </button>
      ) : null}
    </div>
  );
}

function Heading<T>(how: {
  column: Column<T>;
  order: Order | undefined;
  sortBy: (column: Column<T>) => void;
}): JSX.Element {
  const { column, order } = how;
  const isSorted = order?.column === column.name;
  const direction = isSorted ? (order.isDown ? "descending" : "ascending") : "none";
  return (
    <th
      scope="col"
      class={classOf(column)}
      {...(column.by === undefined ? {} : { "aria-sort": direction })}
    >
      {column.by === undefined ? (
        column.name
      ) : (
        <button type="button" class="sort" onClick={() => how.sortBy(column)}>
          {column.name}
          <span aria-hidden="true" class="arrow">
            {isSorted ? (order.isDown ? "↓" : "↑") : ""}
          </span>
        </button>
      )}
    </th>
  );
}

function classOf<T>(column: Column<T>): string {
  return `${column.isNumber ? "number" : ""} ${column.class ?? ""}`.trim();
}

/** Numbers by size, whole ones of any size among them; texts as people sort them. */
export function compare(one: string | number | bigint, other: string | number | bigint): number {
  if (typeof one === "string" && typeof other === "string") {
    return one.localeCompare(other, "en", { numeric: true });
  }
  return one < other ? -1 : one > other ? 1 : 0;
}
