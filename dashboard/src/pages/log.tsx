/** Single calls as they were captured, the newest first. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ask } from "../api/http";
import { type Question, useQuestion } from "../api/queries";
import type { UsageList } from "../api/wire";
import { Count, Money } from "../parts/amounts";
import { Answer, Badge, Failure, Panel, Reveal, Waiting } from "../parts/panel";
import { usePaging } from "../parts/pager";
import { type Column, Table } from "../parts/table";
import { Instant } from "../parts/time";
import { isDate } from "../format/time";
import { linkTo } from "../state/route";
import type { View } from "../state/view";
import { type Call, type Calls, isPlain, merged } from "./calls";
import { Decision } from "./decision";

/** Of how many organisations records are read at once: the API lists them one by one. */
const ORGS_MAX = 12;
/** How many pages without a record in them are passed over. */
const EMPTY_PAGES_MAX = 20;

export function Log({ view }: { view: View }): JSX.Element {
  const paging = usePaging(JSON.stringify([view.filters, view.span.from, view.span.to]));
  const orgs = orgsOf(view);
  const calls = useQuestion<Calls>(
    view.orgs === null ? null : questionOf(view, orgs.slice(0, ORGS_MAX), paging.after),
  );
  if (view.orgs === null) {
    if (view.orgsFailed === null) return <Waiting lines={8} />;
    return <Failure problem={view.orgsFailed} reload={view.reloadOrgs} />;
  }
  const isOne = orgs.length === 1;
  return (
    <Panel title="Calls" note={`${view.span.title}, newest first, as they are captured`}>
      {orgs.length > ORGS_MAX ? (
        <p class="stale">
          These are calls of {ORGS_MAX} of {orgs.length} organisations. Choose one to see all of it.
        </p>
      ) : null}
      <Answer of={calls} lines={10}>
        {(page) => (
          <>
            <CallTable view={view} calls={page.calls} hasOrgs={!isOne} />
            {isOne ? (
              paging.buttons(page.next)
            ) : page.next === undefined ? null : (
              <p class="note">There are earlier calls. Choose an organisation to see them.</p>
            )}
          </>
        )}
      </Answer>
    </Panel>
  );
}

function orgsOf(view: View): string[] {
  if (view.filters.org !== undefined) return [view.filters.org];
  return (view.orgs ?? []).map(({ id }) => id);
}

function questionOf(
  view: View,
  orgs: readonly string[],
  after: string | undefined,
): Question<Calls> {
  const { filters, span } = view;
  const query = new URLSearchParams({ from: span.from, to: span.to });
  if (filters.app) query.set("app_id", filters.app);
  if (filters.label) query.set("label", filters.label);
  if (filters.tag) query.set("tag", filters.tag);
  if (after !== undefined) query.set("after", after);
  return {
    key: `calls ${orgs.join(" ")} ${query}`,
    topics: ["spend"],
    fetch: async (signal) => {
      const pages = await Promise.all(orgs.map((org) => readPage(org, query, signal)));
      return merged(pages);
    },
  };
}

/** The next page of an organisation that has a record in it. */
async function readPage(org: string, query: URLSearchParams, signal: AbortSignal): Promise<Calls> {
  const given = new URLSearchParams(query);
  for (let page = 0; ; page += 1) {
    const answer = await ask<UsageList>(`/api/v1/orgs/${org}/usage?${given}`, signal);
    const isLast = answer.next === undefined || page === EMPTY_PAGES_MAX;
    if (answer.records.length > 0 || isLast) {
      return { calls: answer.records.map((one) => ({ ...one, org_id: org })), next: answer.next };
    }
    given.set("after", answer.next ?? "");
  }
}

function CallTable(how: { view: View; calls: Call[]; hasOrgs: boolean }): JSX.Element {
  const { view } = how;
  const [open, setOpen] = useState<string | null>(null);
  const tokens = (
    name: string,
    of: (call: Call) => number | bigint,
    csv: string,
  ): Column<Call> => ({
    name,
    isNumber: true,
    by: of,
    show: (call) => <Count value={of(call)} />,
    csv: [[csv, of]],
  });
  const columns: Column<Call>[] = [
    {
      name: "Captured",
      by: (call) => call.recorded_at,
      show: (call) => <Instant at={call.recorded_at} zone={view.clock} />,
      csv: [
        ["recorded_at", (call) => call.recorded_at],
        ["happened_at", (call) => call.happened_at],
      ],
    },
    {
      name: "Who",
      isName: true,
      by: (call) => `${view.nameOf(call.org_id)} ${call.app_id ?? ""}`,
      show: (call) => <Who view={view} call={call} hasOrgs={how.hasOrgs} />,
      csv: [
        ["org_id", (call) => call.org_id],
        ["app_id", (call) => call.app_id],
      ],
    },
    {
      name: "Label",
      by: (call) => call.model_label,
      show: (call) => call.model_label,
      csv: [["model_label", (call) => call.model_label]],
    },
    {
      name: "Cost",
      isNumber: true,
      by: (call) => call.cost_usd_micros,
      show: (call) => <Money micros={call.cost_usd_micros} />,
      csv: [["cost_usd_micros", (call) => call.cost_usd_micros]],
    },
    tokens("Input", (call) => call.input_tokens, "input_tokens"),
    tokens("Output", (call) => call.output_tokens, "output_tokens"),
    tokens("Cache read", (call) => call.cache_read_tokens, "cache_read_tokens"),
    tokens(
      "Cache write",
      (call) => BigInt(call.cache_write_5m_tokens) + BigInt(call.cache_write_1h_tokens),
      "cache_write_tokens",
    ),
    {
      name: "State",
      by: (call) => call.status,
      show: (call) => (
        <span class="badges">
          {call.status === "ERROR" ? <Badge tone="over">failed</Badge> : null}
          {call.price_estimated ? <Badge tone="near">price estimated</Badge> : null}
          {call.voided_at === undefined ? null : <Badge tone="near">voided</Badge>}
          {call.voids === undefined ? null : <Badge tone="near">correction</Badge>}
          {isPlain(call) ? <Badge tone="good">ok</Badge> : null}
        </span>
      ),
      csv: [
        ["status", (call) => call.status],
        ["price_estimated", (call) => call.price_estimated],
        ["voided_at", (call) => call.voided_at ?? null],
        ["voids", (call) => call.voids ?? null],
      ],
    },
    {
      name: "Tags",
      show: (call) => (
        <span class="badges">
          {Object.entries(call.tags).map(([key, value]) => (
            <Badge key={key} tone="plain">{`${key}: ${value}`}</Badge>
          ))}
        </span>
      ),
      csv: [["tags", (call) => JSON.stringify(call.tags)]],
    },
    {
      name: "Decision",
      show: (call) => (
        <Reveal
          isOpen={open === call.request_id}
          what={`the decision on ${call.request_id}`}
          toggle={() => setOpen(open === call.request_id ? null : call.request_id)}
        />
      ),
      csv: [["request_id", (call) => call.request_id]],
    },
  ];
  return (
    <Table
      caption="Calls"
      columns={columns}
      rows={how.calls}
      keyOf={(call) => `${call.org_id} ${call.request_id}`}
      textOf={(call) =>
        `${view.nameOf(call.org_id)} ${call.app_id} ${call.model_label} ${call.request_id} ${Object.entries(call.tags).join(" ")}`
      }
      empty={{
        title: "No call was captured",
        text: isDate(view.span.from)
          ? "Not on these days, and not with these filters. Calls appear here as they are captured."
          : "Not in these hours, and not with these filters. Calls appear here as they are captured.",
      }}
      below={(call) =>
        open === call.request_id ? <Decision view={view} call={call} org={call.org_id} /> : null
      }
    />
  );
}

function Who({ view, call, hasOrgs }: { view: View; call: Call; hasOrgs: boolean }): JSX.Element {
  const app = call.app_id ?? undefined;
  return (
    <a href={linkTo({ page: "client", filters: { org: call.org_id, app } })}>
      {hasOrgs ? `${view.nameOf(call.org_id)} / ` : ""}
      {call.app_id ?? "(no app)"}
    </a>
  );
}
