/** Colours of series. A name keeps its colour for as long as the page is open. */

/** How many colours there are in the style sheet, `--series-0` and on. */
const COLORS = 8;
const known = new Map<string, number>();

/** Which colour a name has; names that everybody has come first and so differ. */
export function colorOf(name: string): number {
  let index = known.get(name);
  if (index === undefined) {
    index = known.size % COLORS;
    known.set(name, index);
  }
  return index;
}

for (const name of ["premium", "standard", "economy"]) colorOf(name);

/** The colour as the style sheet has it now, light or dark. */
export function colorValue(index: number): string {
  return cssValue(`--series-${index}`);
}

/** A colour of the style sheet. */
export function cssValue(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
