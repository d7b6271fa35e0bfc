/**
 * Who looks: a key, or a client with its secret. It is kept in the memory of this tab and in its
 * `sessionStorage`, so that a screen on a wall survives a reload and nothing survives the tab. It is
 * never in an address, never in `localStorage` and in no cookie.
 */
import type { Me } from "../api/wire";
import { Cell } from "./cell";

/** The credentials that a person typed. */
export type Credential =
  { kind: "key"; key: string } | { kind: "client"; clientId: string; secret: string };

/** A credential that was right, and what it is. */
export interface Session {
  credential: Credential;
  me: Me;
  /** Of a client: what its requests carry, and until when. */
  token?: { text: string; expiresAtMs: number };
}

const STORED = "pricekeeper.session";

export const session = new Cell<Session | null>(restore());
/** Why the session ended. */
export const endedBecause = new Cell<string | null>(null);

function restore(): Session | null {
  try {
    const text = sessionStorage.getItem(STORED);
    return text === null ? null : (JSON.parse(text) as Session);
  } catch {
    return null; // a browser may forbid it, or the text is not ours
  }
}

/** Begin a session, or replace its token. */
export function setSession(next: Session): void {
  endedBecause.value = null;
  session.value = next;
  try {
    sessionStorage.setItem(STORED, JSON.stringify(next));
  } catch {
    // then it lasts until the next reload
  }
}

/** End it. The login form shows `because`. */
export function endSession(because: string | null): void {
  try {
    sessionStorage.removeItem(STORED);
  } catch {
    // then nothing was kept
  }
  endedBecause.value = because;
  session.value = null;
}

/** What a session may do and see, in the words of the page. */
export interface Rights {
  /** Changes what holds for today: overrides, freezes, ends sessions. */
  operates: boolean;
  /** Changes settings, such as the limit of a budget. */
  provisions: boolean;
  /** Reads who changed what. */
  audits: boolean;
  /** The only organisation there is to see, if there is one. */
  onlyOrg: string | null;
  /** The only visible app, for its developers. */
  onlyApp: string | null;
  isKey: boolean;
}

export function rightsOf({ me }: Session): Rights {
  const isKey = me.kind !== "CLIENT";
  return {
    operates: isKey && (me.role === "OPERATOR" || me.role === "ADMIN"),
    provisions: isKey && me.role === "ADMIN",
    audits: isKey,
    onlyOrg: me.org_ids?.length === 1 ? (me.org_ids[0] ?? null) : null,
    onlyApp: me.app_id ?? null,
    isKey,
  };
}
