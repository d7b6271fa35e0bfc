/** A part of a page, with its heading, and the states that a question can be in. */
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";
import type { Problem } from "../api/http";
import type { Loaded } from "../api/queries";
import { duration } from "../format/time";

export function Panel(how: {
  title: string;
  children: ComponentChildren;
  /** Beside the heading: controls, links. */
  actions?: ComponentChildren;
  /** Under the heading, in a few words. */
  note?: ComponentChildren;
  class?: string;
}): JSX.Element {
  const id = useId();
  return (
    <section class={`panel ${how.class ?? ""}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>{how.title}</h2>
        {how.note === undefined ? null : <p class="note">{how.note}</p>}
        <div class="actions">{how.actions}</div>
      </header>
      {how.children}
    </section>
  );
}

/** Nothing to show, and why that is so. */
export function Empty({
  title,
  children,
}: {
  title: string;
  children?: ComponentChildren;
}): JSX.Element {
  return (
    <div class="state">
      <p class="state-title">{title}</p>
      {children === undefined ? null : <p>{children}</p>}
    </div>
  );
}

/** Something is on its way: grey lines in its place. */
export function Waiting({ lines = 4 }: { lines?: number }): JSX.Element {
  return (
    <div class="waiting" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, index) => (
        <span key={index} class={`line w${index % 4}`} />
      ))}
    </div>
  );
}

/** What went wrong, and what can be done. */
export function Failure({
  problem,
  reload,
}: {
  problem: Problem;
  reload: () => void;
}): JSX.Element {
  return (
    <div class="state failed" role="alert">
      <p class="state-title">{titleOf(problem)}</p>
      <p>
        {problem.message}
        {problem.retryAfterMs === null ? "" : ` Try again in ${duration(problem.retryAfterMs)}.`}
      </p>
      {problem.body?.request_id ? (
        <p class="mono small">request {problem.body.request_id}</p>
      ) : null}
      <button type="button" onClick={reload}>
        Try again
      </button>
    </div>
  );
}

function titleOf({ status }: Problem): string {
  if (status === 0) return "Not reachable";
  if (status === 403) return "Not allowed with this key";
  if (status === 404) return "Not found";
  if (status === 429) return "Too many requests";
  if (status >= 500) return "The service can't answer";
  return "The request failed";
}

/** The answer, or a placeholder while it loads, or its error. */
export function Answer<T>(how: {
  of: Loaded<T> & { reload: () => void };
  lines?: number;
  children: (data: T) => ComponentChildren;
}): JSX.Element {
  const { data, error, reload } = how.of;
  if (data === null) {
    if (error !== null) return <Failure problem={error} reload={reload} />;
    return <Waiting {...(how.lines === undefined ? {} : { lines: how.lines })} />;
  }
  return (
    <>
      {error === null ? null : (
        <p class="stale" role="status">
          {error.isOffline ? "Not reachable" : error.message} These are older numbers.{" "}
          <button type="button" class="link" onClick={reload}>
            Try again
          </button>
        </p>
      )}
      {how.children(data)}
    </>
  );
}

/** A button that shows or hides what is under its row. */
export function Reveal(how: {
  isOpen: boolean;
  /** What it opens, for screen readers: `the decision on …`. */
  what: string;
  toggle: () => void;
}): JSX.Element {
  return (
    <button type="button" class="link" aria-expanded={how.isOpen} onClick={how.toggle}>
      {how.isOpen ? "hide" : "show"}
      <span class="hidden"> {how.what}</span>
    </button>
  );
}

/** A short word about a state. */
export function Badge(how: {
  tone: "good" | "near" | "over" | "plain" | "info";
  children: ComponentChildren;
  title?: string;
}): JSX.Element {
  return (
    <span class={`badge ${how.tone}`} {...(how.title === undefined ? {} : { title: how.title })}>
      {how.children}
    </span>
  );
}
