/** The one range and set of filters, which all pages share and the address has. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useList, usePath } from "../api/queries";
import type { AppAnswer, SpendAnswer } from "../api/wire";
import { addDays } from "../format/time";
import { customEnds, isPreset, PRESETS, spanOf } from "../state/range";
import { goTo, linkTo } from "../state/route";
import { spendPath, type View } from "../state/view";

export function FilterBar({ view }: { view: View }): JSX.Element {
  const { filters, rights } = view;
  const count = [filters.label, filters.tag].filter(Boolean).length;
  const chosen = [rights.onlyOrg === null && filters.org, rights.onlyApp === null && filters.app];
  const active = count + chosen.filter(Boolean).length;
  return (
    <search class="filters" aria-label="Range and filters">
      <RangeChoice view={view} />
      <details class="more-filters" open>
        <summary>Filters{active > 0 ? ` (${active})` : ""}</summary>
        <div class="filter-fields">
          {rights.onlyOrg === null ? <OrgChoice view={view} /> : null}
          {rights.onlyApp === null && filters.org !== undefined ? (
            <AppChoice view={view} org={filters.org} />
          ) : null}
          <LabelChoice view={view} />
          <TagChoice view={view} />
          {active > 0 ? (
            <a
              class="clear"
              href={linkTo({
                filters: {
                  org: undefined,
                  app: undefined,
                  label: undefined,
                  tag: undefined,
                },
              })}
            >
              Clear
            </a>
          ) : null}
        </div>
      </details>
      <span class="note">Times: {view.clock}</span>
    </search>
  );
}

function RangeChoice({ view }: { view: View }): JSX.Element {
  const { range } = view.filters;
  const ends = customEnds(range);
  const [isOpen, setOpen] = useState(ends !== null);
  const date = (text: string): string => text.slice(0, 10);
  const first = date(ends?.[0] ?? view.span.from);
  const last = date(ends?.[1] ?? view.span.to);
  const set = (from: string, to: string): void => {
    if (customEnds(`${from}..${to}`) !== null) goTo({ filters: { range: `${from}..${to}` } });
  };
  return (
    <div class="range">
      <fieldset class="segments">
        <legend class="hidden">Range</legend>
        {Object.entries(PRESETS).map(([name, title]) => (
          <a
            key={name}
            href={linkTo({ filters: { range: name } })}
            {...(range === name ? { "aria-current": "true" as const } : {})}
            onClick={() => setOpen(false)}
          >
            {title}
          </a>
        ))}
        <button
          type="button"
          aria-expanded={isOpen}
          class={isPreset(range) ? "" : "current"}
          onClick={() => setOpen(!isOpen)}
        >
          Dates
        </button>
      </fieldset>
      {isOpen ? (
        <span class="dates">
          <input
            type="date"
            aria-label="First day"
            value={first}
            max={last}
            min={addDays(last, -399)}
            onChange={(event) => set(event.currentTarget.value, last)}
          />
          <span aria-hidden="true">–</span>
          <input
            type="date"
            aria-label="Last day"
            value={last}
            min={first}
            onChange={(event) => set(first, event.currentTarget.value)}
          />
        </span>
      ) : null}
    </div>
  );
}

function Choice(how: {
  name: string;
  all: string;
  value: string | undefined;
  options: readonly (readonly [string, string])[];
  choose: (value: string | undefined) => void;
}): JSX.Element {
  const isKnown = how.value === undefined || how.options.some(([value]) => value === how.value);
  return (
    <label class={how.value === undefined ? "choice-field" : "choice-field chosen"}>
      <span class="hidden">{how.name}</span>
      <select
        value={how.value ?? ""}
        onChange={(event) => how.choose(event.currentTarget.value || undefined)}
      >
        <option value="">{how.all}</option>
        {isKnown ? null : <option value={how.value}>{how.value}</option>}
        {how.options.map(([value, title]) => (
          <option key={value} value={value}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
}

function OrgChoice({ view }: { view: View }): JSX.Element {
  const options = (view.orgs ?? []).map(({ id, name }) => [id, name] as const);
  options.sort((one, other) => one[1].localeCompare(other[1]));
  return (
    <Choice
      name="Organisation"
      all="All organisations"
      value={view.filters.org}
      options={options}
      choose={(org) => goTo({ filters: { org } })}
    />
  );
}

function AppChoice({ view, org }: { view: View; org: string }): JSX.Element {
  return (
    <Choice
      name="App"
      all="All apps"
      value={view.filters.app}
      options={useApps(view, org)}
      choose={(app) => goTo({ filters: { app } })}
    />
  );
}

/** The apps of an organisation with their names, or for the organisation itself those that spend. */
function useApps(view: View, org: string): (readonly [string, string])[] {
  const { isKey } = view.rights;
  const month = spanOf("30d", view.zoneOf(org), Date.now());
  const apps = useList<AppAnswer>(isKey ? `/api/v1/orgs/${org}/apps` : null, "apps", ["settings"]);
  const spend = usePath<SpendAnswer>(
    isKey || view.orgs === null
      ? null
      : spendPath({ filters: { range: "30d", org } }, month, ["app"]),
    ["settings"],
  );
  if (isKey) {
    return (apps.data?.rows ?? []).map(({ app_id, app_name }) => [app_id, app_name] as const);
  }
  const ids = (spend.data?.rows ?? []).map((row) => String(row["app"])).filter(Boolean);
  return ids.map((id) => [id, id] as const);
}

function LabelChoice({ view }: { view: View }): JSX.Element {
  const seen = view.orgs?.filter(
    ({ id }) => view.filters.org === undefined || id === view.filters.org,
  );
  const labels = new Set(seen?.flatMap(({ configuration }) => configuration.model_ordering));
  return (
    <Choice
      name="Label"
      all="All labels"
      value={view.filters.label}
      options={[...labels].sort().map((label) => [label, label] as const)}
      choose={(label) => goTo({ filters: { label } })}
    />
  );
}

/** The declared tags of what is looked at. */
export function tagKeysOf(view: View): string[] {
  const seen = view.orgs?.filter(
    ({ id }) => view.filters.org === undefined || id === view.filters.org,
  );
  return [...new Set(seen?.flatMap(({ configuration }) => configuration.tag_keys))].sort();
}

function TagChoice({ view }: { view: View }): JSX.Element | null {
  const keys = tagKeysOf(view);
  const [key = "", ...rest] = (view.filters.tag ?? "").split(":");
  const value = rest.join(":");
  const [chosenKey, setKey] = useState(key);
  useEffect(() => setKey(key), [key]);
  if (keys.length === 0 && key === "") return null;
  const name = chosenKey || keys[0] || key;
  return (
    <form
      class={view.filters.tag === undefined ? "choice-field tag" : "choice-field tag chosen"}
      onSubmit={(event) => {
        event.preventDefault();
        const text = new FormData(event.currentTarget).get("value");
        goTo({ filters: { tag: text === "" ? undefined : `${name}:${String(text)}` } });
      }}
    >
      <label>
        <span class="hidden">Tag</span>
        <select value={name} onChange={(event) => setKey(event.currentTarget.value)}>
          {[...new Set([...keys, name])].map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
      <input
        key={view.filters.tag ?? ""}
        name="value"
        defaultValue={value}
        placeholder={view.filters.tag === `${name}:` ? "(no tag)" : "any value"}
        aria-label={`Value of the tag ${name}`}
        size={10}
      />
    </form>
  );
}
