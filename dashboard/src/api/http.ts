/** Requests to the service, with the credentials of the session and with errors that say something. */
import { Cell } from "../state/cell";
import { type Credential, endSession, type Session, session, setSession } from "../state/session";
import { parseJson } from "./json";
import type { AwsCredentialsAnswer, Me, ProblemBody } from "./wire";

const TIMEOUT_MS = 20_000;
/** How long before its end a token is exchanged for another one. */
const RENEW_MS = 120_000;

/** What the service limits together, because it reads much: spend, records, days. */
const REPORTS = /^\/api\/v1\/(spend|budgets)|\/(usage|aggregates)\b/;

/** Why a request was not answered as it should be. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly retryAfterMs: number | null = null,
    readonly body: ProblemBody | null = null,
  ) {
    super(detail);
    this.name = "Problem";
  }

  /** Whether the service was not reached at all. */
  get isOffline(): boolean {
    return this.status === 0;
  }
}

/** Whether the last request reached the service. */
export const reachable = new Cell(true);

/** What is left of the rate limit of reports, and when it is full again. Polling reads it. */
export const allowance = new Cell<{ limit: number; left: number; resetMs: number } | null>(null);

/** Ask the service with the session's credentials. */
export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request("GET", path, undefined, signal)) as T;
}

/** Change something with the session's credentials. */
export async function change<T>(
  method: "PUT" | "PATCH" | "POST" | "DELETE",
  path: string,
  body?: unknown,
): Promise<T> {
  return (await request(method, path, body)) as T;
}

async function request(
  method: string,
  path: string,
  body: unknown,
  signal?: AbortSignal,
): Promise<unknown> {
  const headers = await authHeaders();
  if (body !== undefined) {
    headers["content-type"] =
      method === "PATCH" ? "application/merge-patch+json" : "application/json";
  }
  const reply = await send(path, {
    method,
    headers,
    ...(body === undefined ? {} : { body: writeJson(body) }),
    signal: deadline(signal),
  });
  if (REPORTS.test(path)) noteAllowance(reply.headers);
  return readReply(reply);
}

/** JSON in which a `bigint` is a number, whole. */
export function writeJson(value: unknown): string {
  if (typeof value === "bigint") return value.toString();
  if (Array.isArray(value)) return `[${value.map(writeJson).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value).filter(([, one]) => one !== undefined);
    return `{${entries.map(([name, one]) => `${JSON.stringify(name)}:${writeJson(one)}`).join(",")}}`;
  }
  return JSON.stringify(value) ?? "null";
}

/** The headers that prove who asks; a token that is about to end is exchanged first. */
export async function authHeaders(): Promise<Record<string, string>> {
  const current = session.value;
  if (current === null) throw new Problem(401, "UNAUTHORIZED", "You are logged out. Log in again.");
  if (current.credential.kind === "key") return { "x-api-key": current.credential.key };
  if (current.token === undefined || current.token.expiresAtMs - Date.now() < RENEW_MS) {
    renewing ??= renew(current).finally(() => {
      renewing = null;
    });
    return { authorization: `Bearer ${await renewing}` };
  }
  return { authorization: `Bearer ${current.token.text}` };
}

let renewing: Promise<string> | null = null;

async function renew(current: Session): Promise<string> {
  try {
    const token = await exchange(current.credential);
    if (token === undefined)
      throw new Problem(401, "UNAUTHORIZED", "The service's answer has no token. Log in again.");
    setSession({ ...current, token });
    return token.text;
  } catch (error) {
    if (error instanceof Problem && error.status === 401) {
      endSession(
        "The secret does not work any more. It may have been rotated or revoked. Log in with a new one.",
      );
    }
    throw error;
  }
}

/** A token of one hour for a client's secret. It takes none of the client's sessions. */
async function exchange(credential: Credential): Promise<Session["token"]> {
  if (credential.kind === "key") return undefined;
  const bytes = new TextEncoder().encode(`${credential.clientId}:${credential.secret}`);
  const pair = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const reply = await send("/auth/aws-credentials", {
    headers: { authorization: `Basic ${pair}` },
    signal: deadline(),
  });
  const answer = (await readReply(reply, { isLogin: true })) as AwsCredentialsAnswer;
  return { text: answer.Token, expiresAtMs: Date.parse(answer.Expiration) };
}

/** Find out whether a credential is right and what it may see, and begin a session with it. */
export async function logIn(credential: Credential): Promise<void> {
  const token = await exchange(credential);
  const headers: Record<string, string> =
    credential.kind === "key"
      ? { "x-api-key": credential.key }
      : { authorization: `Bearer ${token?.text ?? ""}` };
  const reply = await send("/api/v1/me", { headers, signal: deadline() });
  const me = (await readReply(reply, { isLogin: true })) as Me;
  setSession({ credential, me, ...(token === undefined ? {} : { token }) });
}

async function send(path: string, how: RequestInit): Promise<Response> {
  try {
    const reply = await fetch(path, {
      ...how,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
    });
    reachable.value = true;
    return reply;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    reachable.value = false;
    const late = error instanceof DOMException && error.name === "TimeoutError";
    throw new Problem(
      0,
      late ? "TIMEOUT" : "OFFLINE",
      late
        ? "The service did not answer in time. Try again."
        : "The service can't be reached. Check that it is running and that you are online.",
    );
  }
}

async function readReply(reply: Response, how: { isLogin?: boolean } = {}): Promise<unknown> {
  const text = await reply.text();
  if (reply.ok) return text === "" ? null : parseJson(text);
  const problem = problemOf(reply, text);
  if (problem.status === 401 && !how.isLogin) endRefusedSession();
  throw problem;
}

/** End the session because its credentials were refused. */
export function endRefusedSession(): void {
  if (session.value === null) return;
  const isKey = session.value.credential.kind === "key";
  endSession(
    isKey
      ? "The key does not work any more. It may have expired or been deleted. Log in with another key."
      : "The access ended. The secret may have been rotated or revoked. Log in with a new one.",
  );
}

function problemOf(reply: Response, text: string): Problem {
  const after = Number(reply.headers.get("retry-after"));
  const retryAfterMs = after > 0 ? after * 1000 : null;
  try {
    const body = parseJson(text) as ProblemBody & {
      error?: string;
      error_description?: string;
    };
    const code = body.code ?? body.error?.toUpperCase() ?? `HTTP_${reply.status}`;
    const detail = body.detail ?? body.error_description ?? body.title ?? `HTTP ${reply.status}`;
    return new Problem(reply.status, code, detail, retryAfterMs, body);
  } catch {
    return new Problem(reply.status, `HTTP_${reply.status}`, `HTTP ${reply.status}`, retryAfterMs);
  }
}

function noteAllowance(headers: Headers): void {
  const [limit, left, reset] = ["limit", "remaining", "reset"].map((name) =>
    Number(headers.get(`ratelimit-${name}`) ?? Number.NaN),
  ) as [number, number, number];
  allowance.value = Number.isNaN(limit + left + reset)
    ? null
    : { limit, left, resetMs: reset * 1000 };
}

function deadline(signal?: AbortSignal): AbortSignal {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  return signal === undefined ? timeout : AbortSignal.any([signal, timeout]);
}
