/** Who was denied, and why: everything that stood in the way, as a tree. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Int } from "../api/json";
import { ask } from "../api/http";
import { type Question, useQuestion } from "../api/queries";
import type { DenialAnswer, DenialList } from "../api/wire";
import { count, plural } from "../format/numbers";
import { type Clock, duration } from "../format/time";
import { Count, Money } from "../parts/amounts";
import { Answer, Badge, Panel, Reveal } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { Away, Instant, Moment } from "../parts/time";
import { linkTo } from "../state/route";
import type { View } from "../state/view";
import { hasTag, isMoney, type Obstacle, readWhy, type Why } from "./why";

const PAGES_MAX = 10;
const ROWS_MAX = 500;

const KINDS: Readonly<Record<string, string>> = {
  AUTHORIZATION: "authorization",
  GATEWAY: "gateway",
  LIMITS: "acquire",
  SELECTION: "selection",
};

interface Denied {
  denials: DenialAnswer[];
  isWhole: boolean;
}

export function Denials({ view }: { view: View }): JSX.Element {
  const denials = useDenials(view);
  const [open, setOpen] = useState<string | null>(null);
  return (
    <Panel
      title="Denials"
      note={`${view.span.title} · by minute, app, model and limit, newest first`}
    >
      <Answer of={denials} lines={8}>
        {(page) => (
          <>
            {page.isWhole ? null : (
              <p class="stale">
                These are the newest {count(page.denials.length)}. Take a shorter range to see the
                rest.
              </p>
            )}
            <Table
              caption="Denials"
              columns={columnsOf(view, open, setOpen)}
              rows={page.denials}
              keyOf={keyOf}
              textOf={(one) =>
                `${view.nameOf(one.org_id)} ${one.app_id} ${one.model} ${one.code} ${JSON.stringify(one.example)}`
              }
              empty={{
                title: "No denials",
                text: "None in this range with these filters. Choose a longer range or clear filters.",
              }}
              below={(one) => (keyOf(one) === open ? <Tree view={view} denial={one} /> : null)}
            />
          </>
        )}
      </Answer>
    </Panel>
  );
}

/** The denials of what is looked at. */
export function useDenials(view: View) {
  return useQuestion<Denied>(view.orgs === null ? null : questionOf(view));
}

function questionOf(view: View): Question<Denied> {
  const { filters, span } = view;
  const query = new URLSearchParams({ from: span.from, to: span.to });
  if (filters.org && filters.app) query.set("app_id", filters.app);
  const path = filters.org ? `/api/v1/orgs/${filters.org}/denials` : "/api/v1/denials";
  return {
    key: `denials ${path} ${query} ${filters.label ?? ""}`,
    topics: ["denials"],
    fetch: async (signal) => {
      const denials: DenialAnswer[] = [];
      const given = new URLSearchParams(query);
      for (let page = 0; page < PAGES_MAX && denials.length < ROWS_MAX; page += 1) {
        const answer = await ask<DenialList>(`${path}?${given}`, signal);
        denials.push(...answer.denials.filter((one) => isWanted(view, one)));
        if (answer.next === undefined) return { denials, isWhole: true };
        given.set("after", answer.next);
      }
      return { denials, isWhole: false };
    },
  };
}

/** A label is a filter of the page's own: the API does not narrow denials by it. */
function isWanted({ filters }: View, { model, example }: DenialAnswer): boolean {
  if (filters.label !== undefined && model !== filters.label) {
    if (!readWhy(example).obstacles.some(({ label }) => label === filters.label)) return false;
  }
  if (filters.tag === undefined) return true;
  return hasTag(readWhy(example), filters.tag);
}

function keyOf(one: DenialAnswer): string {
  return `${one.org_id} ${one.app_id} ${one.kind} ${one.model} ${one.code} ${one.first_at} ${JSON.stringify(one.example["denied_by"] ?? "")}`;
}

function columnsOf(
  view: View,
  open: string | null,
  setOpen: (key: string | null) => void,
): Column<DenialAnswer>[] {
  const isOne = view.filters.org !== undefined;
  return [
    {
      name: "Last",
      by: (one) => one.last_at,
      show: (one) => <Instant at={one.last_at} zone={view.clock} />,
      csv: [
        ["first_at", (one) => one.first_at],
        ["last_at", (one) => one.last_at],
      ],
    },
    {
      name: "Who",
      isName: true,
      by: (one) => `${view.nameOf(one.org_id)} ${one.app_id ?? ""}`,
      show: (one) => (
        <a
          href={linkTo({
            page: "client",
            filters: { org: one.org_id, app: one.app_id ?? undefined },
          })}
        >
          {isOne ? "" : `${view.nameOf(one.org_id)} / `}
          {one.app_id ?? "(no app)"}
        </a>
      ),
      csv: [
        ["org_id", (one) => one.org_id],
        ["app_id", (one) => one.app_id],
      ],
    },
    {
      name: "Asked for",
      by: (one) => one.model,
      show: (one) => (
        <>
          {one.model} <span class="note">{KINDS[one.kind] ?? one.kind.toLowerCase()}</span>
        </>
      ),
      csv: [
        ["kind", (one) => one.kind],
        ["model", (one) => one.model],
      ],
    },
    {
      name: "Denials",
      isNumber: true,
      by: (one) => one.count,
      show: (one) => <Count value={one.count} />,
      csv: [["count", (one) => one.count]],
    },
    {
      name: "Denied by",
      show: (one) => <Obstacles why={readWhy(one.example)} code={one.code} />,
      csv: [
        ["code", (one) => one.code],
        [
          "denied_by",
          (one) =>
            readWhy(one.example)
              .obstacles.map(({ name }) => name)
              .join(" "),
        ],
        ["detail", (one) => readWhy(one.example).detail],
      ],
    },
    {
      name: "Why",
      show: (one) => {
        const key = keyOf(one);
        return (
          <Reveal
            isOpen={open === key}
            what={`why ${one.app_id ?? "it"} was denied ${one.model}`}
            toggle={() => setOpen(open === key ? null : key)}
          />
        );
      },
    },
  ];
}

const TONES: Readonly<Record<string, "over" | "near" | "info">> = {
  BUDGET: "over",
  QUOTA: "over",
  FROZEN: "info",
  LIMIT: "near",
};

function Obstacles({ why, code }: { why: Why; code: string }): JSX.Element {
  if (why.obstacles.length === 0)
    return <Badge tone="plain">{code.toLowerCase().replaceAll("_", " ")}</Badge>;
  return (
    <span class="badges">
      {why.obstacles.map((one, index) => (
        <Badge key={index} tone={TONES[one.kind] ?? "plain"}>
          {one.kind.toLowerCase()} {one.name}
        </Badge>
      ))}
    </span>
  );
}

/** The reasons of a denial: the call, each considered label, and each blocking limit. */
function Tree({ view, denial }: { view: View; denial: DenialAnswer }): JSX.Element {
  const why = readWhy(denial.example);
  const zone = view.clock;
  const ofLabels = new Set(why.considered.map(({ label }) => label));
  const others = why.obstacles.filter(({ label }) => label === null || !ofLabels.has(label));
  return (
    <ul class="tree" aria-label={`Why ${denial.model} was denied`}>
      <li>
        <strong>{denial.model}</strong> was requested by{" "}
        {denial.app_id ?? view.nameOf(denial.org_id)}, {plural(denial.count, "time")} from{" "}
        <Moment at={denial.first_at} zone={zone} /> to <Instant at={denial.last_at} zone={zone} />,
        and denied: <Badge tone="over">{denial.code}</Badge>
        {why.detail === null || why.considered.length > 0 ? null : <p class="note">{why.detail}</p>}
        <ul>
          {why.considered.map((one) => (
            <li key={one.label}>
              <span class="tree-label">{one.label}</span>{" "}
              <Badge tone={one.outcome === "CHOSEN" ? "good" : "plain"}>
                {one.outcome.toLowerCase()}
              </Badge>
              {one.because === null ? null : <span class="note"> {one.because}</span>}
              <Branch
                obstacles={why.obstacles.filter(({ label }) => label === one.label)}
                zone={zone}
              />
            </li>
          ))}
          {others.map((one, index) => (
            <li key={index}>
              <Leaf obstacle={one} zone={zone} />
            </li>
          ))}
          {why.models.map((one) => (
            <li key={one.label}>
              <span class="tree-label">{one.label}</span> has used {one.quotaPct} % of its quota of
              the day
            </li>
          ))}
        </ul>
      </li>
      {why.tags.length === 0 ? null : (
        <li class="note">
          with{" "}
          {why.tags.map(([key, value]) => (
            <Badge key={key} tone="plain">{`${key}: ${value}`}</Badge>
          ))}
        </li>
      )}
      {why.leftOut.length === 0 ? null : (
        <li class="note">Too large to be recorded: {why.leftOut.join(", ")}.</li>
      )}
    </ul>
  );
}

function Branch({ obstacles, zone }: { obstacles: Obstacle[]; zone: Clock }): JSX.Element | null {
  if (obstacles.length === 0) return null;
  return (
    <ul>
      {obstacles.map((one, index) => (
        <li key={index}>
          <Leaf obstacle={one} zone={zone} />
        </li>
      ))}
    </ul>
  );
}

/** One blocking limit: how much was needed, how much was left, and when it resets. */
function Leaf({ obstacle, zone }: { obstacle: Obstacle; zone: Clock }): JSX.Element {
  const { needed, remaining } = obstacle;
  const amount = (value: Int): JSX.Element =>
    isMoney(obstacle) ? <Money micros={value} /> : <Count value={value} />;
  return (
    <span class="leaf">
      <Badge tone={TONES[obstacle.kind] ?? "plain"}>{obstacle.kind.toLowerCase()}</Badge>{" "}
      <strong>{obstacle.name}</strong>
      {obstacle.scope === null
        ? null
        : ` of the ${obstacle.scope === "APP" ? "app" : "organisation"}`}
      {needed === null || remaining === null ? null : (
        <>
          : {amount(needed)} needed, {amount(remaining)} left
        </>
      )}
      {obstacle.resetsAt === null ? null : (
        <>
          ; resets <Away at={obstacle.resetsAt} zone={zone} /> (
          <Moment at={obstacle.resetsAt} zone={zone} /> {zone})
        </>
      )}
      {obstacle.retryAfterMs === null
        ? null
        : `; enough after ${duration(Number(obstacle.retryAfterMs))}`}
      {obstacle.isNever ? "; more than the limit's capacity, so it never fits" : null}
    </span>
  );
}
