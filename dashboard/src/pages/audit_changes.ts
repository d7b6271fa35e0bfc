/** What an entry of the audit says was changed, member by member. Pure. */

/** One member that differs: where it is, and how it was and is. */
export interface SideChange {
  path: string;
  before: string | null;
  after: string | null;
}

type Side = Readonly<Record<string, unknown>> | undefined;

/** Every member that one side has and the other lacks, or has with another value. */
export function changesOf(before: Side, after: Side): SideChange[] {
  const [was, is] = [flat(before), flat(after)];
  const paths = [...new Set([...was.keys(), ...is.keys()])];
  return paths
    .map((path) => ({ path, before: was.get(path) ?? null, after: is.get(path) ?? null }))
    .filter((one) => one.before !== one.after);
}

/** The members of members, each under its path; what is no object is one text. */
function flat(side: Side): Map<string, string> {
  const found = new Map<string, string>();
  const walk = (value: unknown, path: string): void => {
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      for (const [name, one] of Object.entries(value)) walk(one, path ? `${path}.${name}` : name);
    } else {
      found.set(path, textOf(value));
    }
  };
  walk(side ?? {}, "");
  return found;
}

function textOf(value: unknown): string {
  if (typeof value === "string") return value;
  return JSON.stringify(value, (_key, one) => (typeof one === "bigint" ? one.toString() : one));
}
