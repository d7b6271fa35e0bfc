/** What an operator or administrator changes from the page. Each asks for a reason, and is audited. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { change } from "../api/http";
import { touch } from "../api/queries";
import type { AppAnswer, OrgAnswer } from "../api/wire";
import type { ClientBudget } from "../api/wire";
import { parseUsd, usdExact, usdInput } from "../format/money";
import { Money } from "../parts/amounts";
import { Dialog, Field } from "../parts/dialog";
import { clientPath } from "../state/view";
import { budgetName } from "./budget_health";

type AnyClient = OrgAnswer | AppAnswer;

function pathOf(client: AnyClient): string {
  return clientPath(client.org_id, "app_id" in client ? client.app_id : undefined);
}

function nameOf(client: AnyClient): string {
  return "org_name" in client ? client.org_name : client.app_name;
}

/** The path of a change, with why it is made: the audit has it. */
function withReason(path: string, reason: string): string {
  return `${path}?reason=${encodeURIComponent(reason.trim())}`;
}

function ReasonField(how: { value: string; set: (text: string) => void }): JSX.Element {
  return (
    <Field name="Reason" hint="Recorded in the audit log; do not include secrets.">
      {(id) => (
        <input
          id={id}
          required
          maxLength={200}
          pattern=".*\S.*"
          value={how.value}
          onInput={(event) => how.set(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

/** Have one label used until the end of the organisation's day, or let quotas decide again. */
export function OverrideButton(how: { client: AnyClient }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Override model …
      </button>
      {isOpen ? <OverrideDialog client={how.client} close={() => setOpen(false)} /> : null}
    </>
  );
}

const QUOTAS_DECIDE = "";

export function OverrideDialog({
  client,
  close,
}: {
  client: AnyClient;
  close: () => void;
}): JSX.Element {
  const labels = client.configuration.model_ordering;
  const [label, setLabel] = useState(labels[0] ?? QUOTAS_DECIDE);
  const [reason, setReason] = useState("");
  const submit = async (): Promise<void> => {
    const path = withReason(`${pathOf(client)}/model-override`, reason);
    if (label === QUOTAS_DECIDE) await change("DELETE", path);
    else await change("PUT", path, { model_label: label });
    touch();
  };
  return (
    <Dialog
      title={`Override the model of ${nameOf(client)}`}
      verb="Override"
      submit={submit}
      close={close}
    >
      <Field
        name="Model"
        hint={`In force until midnight (${client.configuration.timezone}), ignoring quotas.`}
      >
        {(id) => (
          <select id={id} value={label} onChange={(event) => setLabel(event.currentTarget.value)}>
            {labels.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
            <option value={QUOTAS_DECIDE}>none: quotas decide again</option>
          </select>
        )}
      </Field>
      <ReasonField value={reason} set={setReason} />
    </Dialog>
  );
}

/** Refuse models to a client, or let it call again. */
export function FreezeButton({ client }: { client: AnyClient }): JSX.Element | null {
  const [isOpen, setOpen] = useState(false);
  const [reason, setReason] = useState("");
  const own = "app_id" in client ? "APP" : "ORG";
  const isFrozen = client.frozen !== undefined;
  if (isFrozen && client.frozen?.scope !== own) return null; // its organisation is
  const submit = async (): Promise<void> => {
    const path = `${pathOf(client)}/freeze`;
    if (isFrozen) await change("DELETE", withReason(path, reason));
    else await change("PUT", path, { reason });
    touch();
  };
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        {isFrozen ? "Unfreeze …" : "Freeze …"}
      </button>
      {isOpen ? (
        <Dialog
          title={isFrozen ? `Unfreeze ${nameOf(client)}?` : `Freeze ${nameOf(client)}?`}
          verb={isFrozen ? "Unfreeze" : "Freeze"}
          isDangerous={!isFrozen}
          submit={submit}
          close={() => setOpen(false)}
        >
          <p>
            {isFrozen
              ? "It can select models and take tokens again, within its budgets."
              : `It can't select models or take tokens of limits${own === "ORG" ? ", nor can its apps" : ""}. Reported usage still counts.`}
          </p>
          <ReasonField value={reason} set={setReason} />
        </Dialog>
      ) : null}
    </>
  );
}

/** Another limit for a budget, or for a quota, which counts as one where quotas are strict. */
export function RaiseDialog(how: {
  budget: ClientBudget;
  client: AnyClient;
  close: () => void;
}): JSX.Element {
  const { budget, client } = how;
  const [text, setText] = useState(usdInput(budget.limit_usd_micros));
  const [reason, setReason] = useState("");
  const micros = parseUsd(text);
  const submit = async (): Promise<void> => {
    if (micros === null) throw new Error("Type the limit in dollars, such as 1,250.50.");
    await change("PATCH", withReason(pathOf(client), reason), patchOf(budget, client, micros));
    touch();
  };
  return (
    <Dialog
      title={`Raise ${budgetName(budget)}`}
      verb="Set the limit"
      submit={submit}
      close={how.close}
    >
      <p>
        Now <Money micros={budget.limit_usd_micros} /> a {budget.window.toLowerCase()}, of which{" "}
        <Money micros={budget.remaining_usd_micros} /> is left.
        {budget.tag === undefined ? "" : " The limit is the same for every value of the tag."}
      </p>
      <Field
        name="New limit in dollars"
        hint={micros === null ? "Dollars, with at most six decimals." : usdExact(micros)}
      >
        {(id) => (
          <input
            id={id}
            required
            inputMode="decimal"
            value={text}
            aria-invalid={micros === null}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        )}
      </Field>
      <ReasonField value={reason} set={setReason} />
    </Dialog>
  );
}

/** A merge patch that changes this limit. A list is replaced whole, so it has the others as they are. */
export function patchOf(
  budget: ClientBudget,
  client: AnyClient,
  micros: bigint,
): Record<string, unknown> {
  if (budget.kind === "QUOTA") return { quotas: { [budget.label ?? ""]: micros } };
  const budgets = client.configuration.budgets.map((one) =>
    one.name === budget.name ? { ...one, limit_usd_micros: micros } : one,
  );
  return { budgets };
}
