/**
 * The page, range and filters, which all pages share. They are in the address behind the `#`, so that
 * a link shows another person the same. No secret is ever there.
 */
import { Cell } from "./cell";
import { DEFAULT_RANGE, isRange } from "./range";

export const PAGES = ["overview", "client", "budgets", "denials", "log", "audit"] as const;
export type PageName = (typeof PAGES)[number];

/** What is looked at. What is absent is not narrowed. */
export interface Filters {
  range: string;
  org?: string;
  app?: string;
  label?: string;
  /** `KEY:VALUE`, or `KEY:` for what has no such tag or an empty one. */
  tag?: string;
}

/** A place in the dashboard. */
export interface Route {
  page: PageName;
  filters: Filters;
  /** What belongs to the page alone, such as how its table is grouped. */
  own: Readonly<Record<string, string>>;
}

const ORG = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const APP = /^[A-Za-z0-9._-]{1,64}$/;
const LABEL = /^[a-z0-9][a-z0-9._-]{0,63}$/;
const TAG = /^[^:#,]+:/;
const SHARED = ["range", "org", "app", "label", "tag"] as const;

/** The place that an address names. What makes no sense in it is left out. */
export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  const given = new URLSearchParams(query);
  const page = PAGES.find((name) => name === path) ?? "overview";
  const range = given.get("range") ?? "";
  const filters: Filters = { range: isRange(range) ? range : DEFAULT_RANGE };
  const org = given.get("org") ?? "";
  if (ORG.test(org)) {
    filters.org = org;
    const app = given.get("app") ?? "";
    if (APP.test(app)) filters.app = app;
  }
  const label = given.get("label") ?? "";
  if (LABEL.test(label)) filters.label = label;
  const tag = given.get("tag") ?? "";
  if (TAG.test(tag)) filters.tag = tag;
  const own: Record<string, string> = {};
  for (const [name, value] of given) {
    if (!SHARED.some((one) => one === name) && value !== "") own[name] = value;
  }
  return { page, filters, own };
}

/** The address of a place. */
export function hrefOf(route: Route): string {
  const { range, org, app, label, tag } = route.filters;
  const query = new URLSearchParams();
  if (range !== DEFAULT_RANGE) query.set("range", range);
  if (org) query.set("org", org);
  if (org && app) query.set("app", app);
  if (label) query.set("label", label);
  if (tag) query.set("tag", tag);
  for (const [name, value] of Object.entries(route.own)) if (value !== "") query.set(name, value);
  const text = query.toString();
  return `#/${route.page}${text ? `?${text}` : ""}`;
}

/** What to change of a place. `undefined` takes a filter away. */
export interface Change {
  page?: PageName;
  filters?: { [K in keyof Filters]?: Filters[K] | undefined };
  own?: Record<string, string | undefined>;
}

/** The place that a change leads to. What belongs to a page alone stays behind on it. */
export function changed(route: Route, change: Change): Route {
  const page = change.page ?? route.page;
  const filters = { ...route.filters, ...change.filters } as Filters;
  if (change.filters && "org" in change.filters && change.filters.org !== route.filters.org) {
    if (!change.filters.app) delete filters.app; // another organisation's app is another app
  }
  const kept = page === route.page ? { ...route.own, ...change.own } : { ...change.own };
  const own = Object.fromEntries(
    Object.entries(kept).filter((entry): entry is [string, string] => entry[1] !== undefined),
  );
  return parseRoute(hrefOf({ page, filters, own }));
}

export const route = new Cell<Route>(parseRoute(location.hash));

addEventListener("hashchange", () => {
  route.value = parseRoute(location.hash);
});

/** The address that a change of the present place leads to. */
export function linkTo(change: Change): string {
  return hrefOf(changed(route.value, change));
}

/** Go there; `replace` leaves no trace for the browser's back button. */
export function goTo(change: Change, how: { replace?: boolean } = {}): void {
  const href = linkTo(change);
  if (href === hrefOf(route.value)) return;
  if (how.replace) {
    history.replaceState(null, "", href);
    route.value = parseRoute(href);
  } else {
    location.hash = href;
  }
}
