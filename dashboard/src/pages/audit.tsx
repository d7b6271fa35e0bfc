/** Who changed what, when, from where and why. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ask } from "../api/http";
import { type Question, useQuestion } from "../api/queries";
import type { AuditEntry, AuditList } from "../api/wire";
import { Answer, Badge, Panel, Reveal } from "../parts/panel";
import { usePaging } from "../parts/pager";
import { type Column, Table } from "../parts/table";
import { Instant } from "../parts/time";
import { addDays, isDate, startOfDay } from "../format/time";
import type { Span } from "../state/range";
import { goTo } from "../state/route";
import { UTC, type View } from "../state/view";
import { changesOf, type SideChange } from "./audit_changes";

/** What else the entries can be narrowed by. */
const FIELDS = [
  ["actor", "Who did it"],
  ["action", "Which action"],
] as const;
const EVERY_MS = 10_000;
/** How many pages without an entry in them are passed over. */
const EMPTY_PAGES_MAX = 20;

export function Audit({ view }: { view: View }): JSX.Element {
  const paging = usePaging(JSON.stringify([view.filters, view.route.own]));
  const entries = useQuestion<AuditList>(
    view.orgs === null ? null : questionOf(view, paging.after),
  );
  const [open, setOpen] = useState<string | null>(null);
  return (
    <Panel
      title="Audit"
      note={`${view.span.title}, every change by a person or a key, newest first`}
    >
      <Answer of={entries} lines={8}>
        {(page) => (
          <>
            <Table
              caption="Audit"
              columns={columnsOf(view, open, setOpen)}
              rows={page.entries}
              keyOf={(one) => one.id}
              textOf={(one) => JSON.stringify(one)}
              empty={{
                title: "No changes",
                text: "None in this range with these filters. Choose a longer range or clear filters.",
              }}
              controls={<Narrowing view={view} />}
              below={(one) => (one.id === open ? <Sides entry={one} /> : null)}
            />
            {paging.buttons(page.next)}
          </>
        )}
      </Answer>
    </Panel>
  );
}

function questionOf({ filters, span, zone, route }: View, after: string | undefined) {
  const query = new URLSearchParams(instantsOf(span, zone ?? UTC));
  if (filters.org) query.set("org_id", filters.org);
  for (const [name] of FIELDS) if (route.own[name]) query.set(name, route.own[name] ?? "");
  if (after !== undefined) query.set("after", after);
  const question: Question<AuditList> = {
    key: `audit ${query}`,
    topics: ["audit", "settings"],
    everyMs: EVERY_MS,
    fetch: async (signal) => {
      const given = new URLSearchParams(query);
      for (let page = 0; ; page += 1) {
        const answer = await ask<AuditList>(`/api/v1/audit?${given}`, signal);
        const isLast = answer.next === undefined || page === EMPTY_PAGES_MAX;
        if (answer.entries.length > 0 || isLast) return answer;
        given.set("after", answer.next ?? "");
      }
    },
  };
  return question;
}

/** The ends of a span as moments: dates of the audit are those of UTC. */
function instantsOf(span: Span, zone: string): { from: string; to: string } {
  const moment = (atMs: number): string => `${new Date(atMs).toISOString().slice(0, 19)}Z`;
  return {
    from: isDate(span.from) ? moment(startOfDay(zone, span.from)) : span.from,
    to: isDate(span.to) ? moment(startOfDay(zone, addDays(span.to, 1))) : span.to,
  };
}

/** Fields that narrow the entries; they are in the address, too. */
function Narrowing({ view }: { view: View }): JSX.Element {
  return (
    <form
      class="narrowing"
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        goTo({
          own: Object.fromEntries(
            FIELDS.map(([name]) => [name, String(given.get(name) ?? "").trim() || undefined]),
          ),
        });
      }}
    >
      {FIELDS.map(([name, title]) => (
        <input
          key={`${name} ${view.route.own[name] ?? ""}`}
          name={name}
          defaultValue={view.route.own[name] ?? ""}
          placeholder={title}
          aria-label={title}
        />
      ))}
      <button type="submit">Narrow</button>
    </form>
  );
}

function columnsOf(
  view: View,
  open: string | null,
  setOpen: (id: string | null) => void,
): Column<AuditEntry>[] {
  const zone = view.clock;
  return [
    {
      name: "When",
      by: (one) => one.at,
      show: (one) => <Instant at={one.at} zone={zone} />,
      csv: [["at", (one) => one.at]],
    },
    {
      name: "Who",
      isName: true,
      by: (one) => one.actor,
      show: (one) => (
        <span class="two-lines">
          <span class="clip" title={one.actor}>
            {one.actor}
          </span>
          <span class="note">{one.address}</span>
        </span>
      ),
      csv: [
        ["actor", (one) => one.actor],
        ["address", (one) => one.address],
      ],
    },
    {
      name: "What",
      by: (one) => one.action,
      show: (one) => <Badge tone="info">{one.action}</Badge>,
      csv: [["action", (one) => one.action]],
    },
    {
      name: "To",
      by: (one) => one.target,
      show: (one) => (
        <span class="clip" title={one.target}>
          {targetOf(view, one.target)}
        </span>
      ),
      csv: [["target", (one) => one.target]],
    },
    {
      name: "Why",
      by: (one) => one.reason ?? "",
      show: (one) => <span class="wrap">{one.reason ?? ""}</span>,
      csv: [["reason", (one) => one.reason]],
    },
    {
      name: "Changes",
      show: (one) => (
        <Reveal
          isOpen={open === one.id}
          what={`the changes of ${one.action} at ${one.at}`}
          toggle={() => setOpen(open === one.id ? null : one.id)}
        />
      ),
      csv: [
        ["before", (one) => JSON.stringify(one.before ?? null)],
        ["after", (one) => JSON.stringify(one.after ?? null)],
        ["request_id", (one) => one.request_id],
        ["id", (one) => one.id],
      ],
    },
  ];
}

/** Before and after, beside each other. */
function Sides({ entry }: { entry: AuditEntry }): JSX.Element {
  const changes: SideChange[] = changesOf(entry.before, entry.after);
  return (
    <div class="decision">
      <p class="note">
        entry <span class="mono">{entry.id}</span> · request{" "}
        <span class="mono">{entry.request_id}</span>
      </p>
      {changes.length === 0 ? (
        <p>Nothing of it can be shown, or there was nothing to change.</p>
      ) : (
        <table>
          <caption>Before and after</caption>
          <thead>
            <tr>
              <th scope="col">Member</th>
              <th scope="col">Before</th>
              <th scope="col">After</th>
            </tr>
          </thead>
          <tbody>
            {changes.map((one) => (
              <tr key={one.path}>
                <th scope="row" class="mono">
                  {one.path}
                </th>
                <td class="mono wrap was">{one.before ?? "–"}</td>
                <td class="mono wrap is">{one.after ?? "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </div>
  );
}

/** The target of a change, by name where it has one. */
function targetOf(view: View, target: string): string {
  const client = /^org-([0-9a-f-]{36})(?:-app-(.+))?$/.exec(target);
  if (client === null) return target;
  const [, org = "", app] = client;
  return app === undefined ? view.nameOf(org) : `${view.nameOf(org)} / ${app}`;
}
