/** Calls that are reported while the page is looked at. */
import { randomBytes } from "node:crypto";
import { bearer, call, world } from "./world";

/** An id of version 7, made now: the service counts it with one plain write. */
export function newId(): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x70;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = bytes.toString("hex");
  return [8, 12, 16, 20, 32].map((end, at) => hex.slice([0, 8, 12, 16, 20][at], end)).join("-");
}

const LABELS = ["premium", "standard", "economy"];
const BATCH = 25;

function usage(count: number): object {
  return {
    request_id: newId(),
    model_label: LABELS[count % LABELS.length],
    input_tokens: 11 + (count % 7),
    output_tokens: 3 + (count % 5),
    cache_read_tokens: count % 3,
    status: count % 50 === 0 ? "ERROR" : "OK",
    tags: { team: ["retail", "platform"][count % 2] },
  };
}

/** Report one call of an app. */
export async function report(org: string, app: string, more: object = {}): Promise<any> {
  const headers = await bearer(`org-${org}-app-${app}`);
  const path = `/api/v1/orgs/${org}/apps/${app}/usage`;
  const { status, body } = await call("POST", path, { ...usage(1), ...more }, headers);
  if (status !== 202) throw new Error(`${status} ${JSON.stringify(body)}`);
  return body;
}

/** Report calls of all apps at that rate until it is stopped; says how many were counted. */
export async function startTraffic(perSecond: number): Promise<() => Promise<number>> {
  const apps = world.companies.flatMap(({ org_id, apps }) =>
    apps.map((app) => [org_id, app] as const),
  );
  const headers = await Promise.all(apps.map(([org, app]) => bearer(`org-${org}-app-${app}`)));
  let [sent, counted, isOver] = [0, 0, false];
  const startedMs = Date.now();
  const send = async (): Promise<void> => {
    while (!isOver) {
      const due = ((Date.now() - startedMs) / 1000) * perSecond;
      if (sent + BATCH > due) {
        await new Promise((resolve) => setTimeout(resolve, 5));
        continue;
      }
      const at = (sent / BATCH) % apps.length;
      const requests = Array.from({ length: BATCH }, (_, index) => usage(sent + index));
      sent += BATCH;
      const [org, app] = apps[at] ?? ["", ""];
      const path = `/api/v1/orgs/${org}/apps/${app}/usage/batch`;
      const { status, body } = await call("POST", path, { requests }, headers[at]);
      if (status !== 207 || body.failed > 0) throw new Error(`${status} ${JSON.stringify(body)}`);
      counted += body.accepted;
    }
  };
  const senders = [send(), send(), send(), send()];
  return async () => {
    isOver = true;
    await Promise.all(senders);
    return counted;
  };
}
