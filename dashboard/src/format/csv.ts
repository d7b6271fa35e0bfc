/** Rows as CSV (RFC 4180), safe to open in a spreadsheet, as the API writes them. */
import type { Int } from "../api/json";

export type CsvCell = string | Int | boolean | null | undefined;

const FORMULA = /^[=+\-@\t\r]/;

/** A line of names, and a line for each row. */
export function csvText(names: readonly string[], rows: readonly (readonly CsvCell[])[]): string {
  return [names, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

function cell(value: CsvCell): string {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return value.toString();
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Let the browser save a file. */
export function saveFile(name: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
