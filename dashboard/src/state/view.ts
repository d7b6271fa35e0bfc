/**
 * What is looked at, by whom: the filters of the address, narrowed to what the session may see, with
 * the names and zones of the organisations that they are about.
 */
import type { Clock } from "../format/time";
import { useMemo } from "preact/hooks";
import { ask } from "../api/http";
import { type Loaded, type Pages, useList, useQuestion } from "../api/queries";
import type { AppAnswer, Configuration, OrgAnswer } from "../api/wire";
import { useCell } from "./cell";
import { now } from "./now";
import { type Span, spanOf } from "./range";
import { type Filters, type Route, route } from "./route";
import { type Rights, rightsOf, type Session, session } from "./session";

/** An organisation as everything on the page needs it. */
export interface Org {
  id: string;
  name: string;
  configuration: Configuration;
}

export interface View {
  route: Route;
  filters: Filters;
  rights: Rights;
  session: Session;
  /** The organisations there are to see; `null` until they are known. */
  orgs: Org[] | null;
  /** Whether there are more than were read. */
  hasAllOrgs: boolean;
  orgsFailed: Loaded<unknown>["error"];
  reloadOrgs: () => void;
  /** The zone of days: the shown organisation's, or the common one of all; `null` if they differ. */
  zone: string | null;
  /** The zone of every moment on the page, which the frame names: `zone`, or UTC. */
  clock: Clock;
  span: Span;
  nameOf: (org: string) => string;
  zoneOf: (org: string) => string;
}

export const UTC = "UTC";

/** The present view, for components of a logged-in person. */
export function useView(): View {
  const current = useCell(session);
  if (current === null) throw new Error("not logged in");
  const at = useCell(route);
  const rights = useMemo(() => rightsOf(current), [current]);
  const filters = useMemo(() => narrowed(at.filters, rights), [at, rights]);
  const found = useOrgs(rights);
  const orgs = found.data?.rows ?? null;
  const byId = useMemo(() => new Map(orgs?.map((org) => [org.id, org])), [orgs]);
  const zone = useMemo(() => commonZone(orgs, filters.org), [orgs, filters.org]);
  // The span changes with the hour, not with the second.
  const minute = Math.floor(useCell(now) / 60_000);
  const span = useMemo(
    () => spanOf(filters.range, zone, minute * 60_000),
    [filters.range, zone, minute],
  );
  return {
    route: at,
    filters,
    rights,
    session: current,
    orgs,
    hasAllOrgs: found.data?.isWhole ?? true,
    orgsFailed: found.error,
    reloadOrgs: found.reload,
    zone,
    clock: (zone ?? UTC) as Clock,
    span,
    nameOf: (org) => byId.get(org)?.name ?? org,
    zoneOf: (org) => byId.get(org)?.configuration.timezone ?? zone ?? UTC,
  };
}

/** The filters in force: a person who may see only one organisation or app always looks at it. */
function narrowed(filters: Filters, rights: Rights): Filters {
  const result = { ...filters };
  if (rights.onlyOrg !== null) result.org = rights.onlyOrg;
  if (rights.onlyApp !== null) result.app = rights.onlyApp;
  return result;
}

function useOrgs(rights: Rights): Loaded<Pages<Org>> & { reload: () => void } {
  const { onlyOrg, onlyApp } = rights;
  const list = useList<OrgAnswer>(onlyOrg === null ? "/api/v1/orgs" : null, "orgs", ["settings"]);
  const one = useQuestion<OrgAnswer | AppAnswer>(
    onlyOrg === null
      ? null
      : {
          key: `own ${onlyOrg}/${onlyApp ?? ""}`,
          topics: ["settings"],
          fetch: (signal) => ask(settingsPath(onlyOrg, onlyApp ?? undefined), signal),
        },
  );
  return useMemo(() => {
    if (onlyOrg === null) {
      const data = list.data && { ...list.data, rows: list.data.rows.map(orgOf) };
      return { ...list, data };
    }
    return { ...one, data: one.data && { rows: [orgOf(one.data)], isWhole: true } };
  }, [onlyOrg, list.data, list.error, one.data, one.error]);
}

function orgOf(answer: OrgAnswer | AppAnswer): Org {
  const name = "org_name" in answer ? answer.org_name : answer.org_id;
  return { id: answer.org_id, name, configuration: answer.configuration };
}

function commonZone(orgs: Org[] | null, org: string | undefined): string | null {
  const seen = org === undefined ? orgs : orgs?.filter(({ id }) => id === org);
  const zones = new Set(seen?.map(({ configuration }) => configuration.timezone));
  const [zone] = zones;
  return zones.size === 1 && zone !== undefined ? zone : null;
}

/** The path of a question about spend, for what is looked at. */
export function spendPath(
  { filters }: Pick<View, "filters">,
  span: Span,
  groups: readonly string[],
): string {
  const query = new URLSearchParams({ from: span.from, to: span.to });
  if (groups.length > 0) query.set("group_by", groups.join(","));
  if (filters.org) query.set("org_id", filters.org);
  if (filters.app) query.set("app_id", filters.app);
  if (filters.label) query.set("label", filters.label);
  if (filters.tag) query.set("tag", filters.tag);
  return `/api/v1/spend?${query}`;
}

/** The path of a client: an app, or an organisation. */
export function clientPath(org: string, app: string | undefined): string {
  return app === undefined ? `/api/v1/orgs/${org}` : `/api/v1/orgs/${org}/apps/${app}`;
}

/** The path of a client's settings, for itself and for administrators. */
export function settingsPath(org: string, app: string | undefined): string {
  return `${clientPath(org, app)}/settings`;
}
