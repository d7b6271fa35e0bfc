/** The service that the tests look at: `tests/page` starts it, with some days behind it. */
import { readFileSync } from "node:fs";

export interface Company {
  org_id: string;
  name: string;
  zone: string;
  apps: string[];
}

interface World {
  url: string;
  key: string;
  companies: Company[];
  /** By client id. */
  secrets: Record<string, string>;
}

const PATH = process.env["PRICEKEEPER_PAGE_WORLD"];
if (PATH === undefined) throw new Error("run these by `make test ARGS=tests/page`");
export const world = JSON.parse(readFileSync(PATH, "utf8")) as World;

/** A company by its place in the world. */
export function company(index: number): Company {
  const found = world.companies[index];
  if (found === undefined) throw new Error(`there is no company ${index}`);
  return found;
}

export interface Reply {
  status: number;
  body: any;
}

/** Ask the service directly, past the page. */
export async function call(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = { "x-api-key": world.key },
): Promise<Reply> {
  const reply = await fetch(world.url + path, {
    method,
    headers: { "content-type": "application/json", ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await reply.text();
  return { status: reply.status, body: text === "" ? null : JSON.parse(text) };
}

/** Ask the service for something that is there. */
export async function ask(path: string, headers?: Record<string, string>): Promise<any> {
  const { status, body } = await call("GET", path, undefined, headers);
  if (status !== 200) throw new Error(`${path}: ${status} ${JSON.stringify(body)}`);
  return body;
}

/** The header of a client, by a token that takes none of its sessions. */
export async function bearer(clientId: string): Promise<Record<string, string>> {
  const pair = Buffer.from(`${clientId}:${world.secrets[clientId]}`).toString("base64");
  const { Token } = await ask("/auth/aws-credentials", { authorization: `Basic ${pair}` });
  return { authorization: `Bearer ${Token}` };
}

export function orgPath(index: number): string {
  return `/api/v1/orgs/${company(index).org_id}`;
}

export function appPath(index: number, app: string): string {
  return `${orgPath(index)}/apps/${app}`;
}
