/** Going through a list that the service gives page by page, the newest first. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";

export interface Paging {
  /** Behind which the shown page begins; `undefined` for the first. */
  after: string | undefined;
  buttons: (next: string | undefined) => JSX.Element | null;
}

/** The position in a list; another list (`place`) starts at its beginning. */
export function usePaging(place: string): Paging {
  const [trail, setTrail] = useState<{ place: string; after: string[] }>({ place, after: [] });
  const after = trail.place === place ? trail.after : [];
  const go = (to: string[]): void => setTrail({ place, after: to });
  return {
    after: after.at(-1),
    buttons: (next) =>
      after.length === 0 && next === undefined ? null : (
        <div class="pager">
          {after.length === 0 ? null : (
            <button type="button" onClick={() => go(after.slice(0, -1))}>
              ← Newer
            </button>
          )}
          {next === undefined ? null : (
            <button type="button" onClick={() => go([...after, next])}>
              Earlier →
            </button>
          )}
        </div>
      ),
  };
}
