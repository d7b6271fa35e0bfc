/** The live sessions of a client. */
import type { Clock } from "../format/time";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { change } from "../api/http";
import { touch, usePath } from "../api/queries";
import type { SessionAnswer, SessionList } from "../api/wire";
import { Dialog } from "../parts/dialog";
import { Answer, Panel } from "../parts/panel";
import { type Column, Table } from "../parts/table";
import { Away, Moment } from "../parts/time";
import type { View } from "../state/view";

const EVERY_MS = 15_000;

export function Sessions(how: { view: View; path: string; zone: Clock }): JSX.Element {
  const { view, path, zone } = how;
  const where = view.rights.isKey ? `${path}/sessions` : "/auth/sessions";
  const sessions = usePath<SessionList>(where, ["settings"], EVERY_MS);
  const [ending, setEnding] = useState<SessionAnswer | null>(null);
  const columns: Column<SessionAnswer>[] = [
    {
      name: "Session",
      isName: true,
      by: (one) => one.session_id,
      show: (one) => (
        <span class="mono" title={one.session_id}>
          {one.session_id.slice(0, 12)}
        </span>
      ),
      csv: [["session_id", (one) => one.session_id]],
    },
    {
      name: "Began",
      by: (one) => one.created_at,
      show: (one) => <Moment at={one.created_at} zone={zone} />,
      csv: [["created_at", (one) => one.created_at]],
    },
    {
      name: "Last used",
      by: (one) => one.last_used_at,
      show: (one) => <Away at={one.last_used_at} zone={zone} />,
      csv: [["last_used_at", (one) => one.last_used_at]],
    },
    {
      name: "From",
      by: (one) => one.address,
      show: (one) => <span class="mono">{one.address}</span>,
      csv: [["address", (one) => one.address]],
    },
    {
      name: "Program",
      by: (one) => one.user_agent,
      show: (one) => <span class="clip">{one.user_agent}</span>,
      csv: [["user_agent", (one) => one.user_agent]],
    },
  ];
  if (view.rights.operates) {
    columns.push({
      name: "End",
      show: (one) => (
        <button
          type="button"
          onClick={() => setEnding(one)}
          aria-label={`End session ${one.session_id}`}
        >
          End
        </button>
      ),
    });
  }
  return (
    <Panel title="Sessions" note={sessions.data === null ? "" : `at most ${sessions.data.limit}`}>
      <Answer of={sessions}>
        {(list) => (
          <Table
            caption="Sessions"
            columns={columns}
            rows={list.sessions}
            keyOf={(one) => one.session_id}
            sorted={{ column: "Last used", isDown: true }}
            empty={{
              title: "No live session",
              text: "A session begins with the client's first login.",
            }}
          />
        )}
      </Answer>
      {ending === null ? null : (
        <Dialog
          title="End this session?"
          verb="End it"
          isDangerous
          close={() => setEnding(null)}
          submit={async () => {
            await change("DELETE", `${path}/sessions/${encodeURIComponent(ending.session_id)}`);
            touch(["settings"]);
          }}
        >
          <p>
            Its tokens stop working at once, here and within 30 s everywhere. A program that still
            has the secret can log in again.
          </p>
        </Dialog>
      )}
    </Panel>
  );
}
