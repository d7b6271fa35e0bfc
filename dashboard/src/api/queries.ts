/**
 * What the page has asked for. Everything on the page is drawn from whole answers of the service:
 * nothing is added up or carried on here, so that what is shown is what the API says for the same
 * question. An event of the stream only says that a question is worth asking again.
 */
import { useEffect, useMemo } from "preact/hooks";
import { Cell, useCell } from "../state/cell";
import { allowance, ask, Problem } from "./http";

/** What an answer is about: an event of the same topic makes it stale. */
export type Topic =
  "spend" | "budgets" | "authorizations" | "denials" | "flips" | "audit" | "settings" | "alerts";

/** A question and its last answer. */
export interface Loaded<T> {
  data: T | null;
  /** Why the last attempt failed; the earlier answer is kept. */
  error: Problem | null;
  /** When the answer came. */
  atMs: number | null;
}

const NOTHING: Loaded<never> = { data: null, error: null, atMs: null };
/** How soon the same question may be asked again; with the stream's own delay below 2 s in all. */
const INTERVAL_MS = 500;
const RETRY_MS_MAX = 30_000;
/** How soon a question is asked again that was refused, such as one for something that is gone. */
const REFUSED_MS = 10_000;
/** Below this share of the rate limit, questions are asked only as fast as it refills. */
const SCARCE = 0.25;
const PAGES_MAX = 50;

const queries = new Map<string, Query<unknown>>();

class Query<T> {
  readonly state = new Cell<Loaded<T>>(NOTHING);
  users = 0;
  readonly topics = new Set<Topic>();
  everyMs: number | null = null;
  #startedMs = Number.NEGATIVE_INFINITY;
  #failures = 0;
  #isStale = false;
  #running: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly fetch: (signal: AbortSignal) => Promise<T>) {}

  /** Ask again soon: now if the last time was long ago, and once however often this is called. */
  wake(): void {
    this.#isStale = true;
    if (this.#running !== null || document.hidden || this.users === 0) return;
    const { error } = this.state.value;
    const isRefused = error !== null && !isWorthRetrying(error);
    this.#plan(this.#startedMs + (isRefused ? REFUSED_MS : paceMs()) - Date.now());
  }

  /** Ask now, because a person wants it. */
  reload(): void {
    this.#failures = 0;
    this.#running?.abort();
    this.#running = null;
    this.#plan(0);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#running?.abort();
    this.#running = null;
  }

  #plan(delayMs: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#run(), Math.max(0, delayMs));
  }

  async #run(): Promise<void> {
    const running = new AbortController();
    this.#running = running;
    this.#startedMs = Date.now();
    this.#isStale = false;
    let nextMs = this.everyMs;
    try {
      const data = await this.fetch(running.signal);
      if (this.#running !== running) return;
      this.#failures = 0;
      this.state.value = { data, error: null, atMs: Date.now() };
    } catch (error) {
      if (this.#running !== running) return;
      const problem = asProblem(error);
      this.state.value = { ...this.state.value, error: problem };
      nextMs = isWorthRetrying(problem) ? this.#retryMs(problem) : null;
    }
    this.#running = null;
    if (this.users === 0) return;
    if (nextMs !== null) this.#plan(nextMs);
    if (this.#isStale && this.state.value.error === null) this.wake();
  }

  #retryMs(problem: Problem): number {
    const backoffMs =
      Math.min(RETRY_MS_MAX, 1000 * 2 ** this.#failures) * (0.75 + Math.random() / 2);
    this.#failures += 1;
    return Math.max(problem.retryAfterMs ?? 0, backoffMs);
  }
}

function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(-1, "UNREADABLE", error instanceof Error ? error.message : String(error));
}

function isWorthRetrying({ status }: Problem): boolean {
  return status === 0 || status === 429 || status >= 500;
}

/** How long to wait between two askings: longer, if the rate limit of the key would run out. */
function paceMs(): number {
  const known = allowance.value;
  if (known === null || known.left > known.limit * SCARCE || known.resetMs <= 0) return INTERVAL_MS;
  const perMs = (known.limit - known.left) / known.resetMs;
  const live = [...queries.values()].filter((one) => one.users > 0 && one.topics.has("spend"));
  return Math.max(INTERVAL_MS, (live.length / perMs) * 1.25);
}

/** Say that answers about these topics may have changed; without topics, that all of them may. */
export function touch(topics?: readonly Topic[]): void {
  for (const query of queries.values()) {
    if (topics === undefined || topics.some((topic) => query.topics.has(topic))) query.wake();
  }
}

/** Forget all answers, because another person logs in. */
export function forgetAll(): void {
  for (const query of queries.values()) query.stop();
  queries.clear();
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) touch();
});

export interface Question<T> {
  /** What tells it from every other question. */
  key: string;
  fetch: (signal: AbortSignal) => Promise<T>;
  topics: readonly Topic[];
  /** How often it is asked again without an event, because it changes with time. */
  everyMs?: number;
}

/** The answer to a question, kept up to date while it is shown; `null` asks nothing. */
export function useQuestion<T>(question: Question<T> | null): Loaded<T> & { reload: () => void } {
  const key = question?.key ?? null;
  // The key is the question
  const query = useMemo(() => (question === null ? null : queryOf(question)), [key]);
  useEffect(() => {
    if (query === null || key === null) return undefined;
    query.users += 1;
    queries.set(key, query as Query<unknown>);
    query.wake();
    return () => {
      query.users -= 1;
      if (query.users === 0) {
        query.stop();
        if (queries.get(key) === query) queries.delete(key);
      }
    };
  }, [query, key]);
  const state = useCell((query?.state ?? EMPTY) as Cell<Loaded<T>>);
  return { ...state, reload: () => query?.reload() };
}

const EMPTY = new Cell<Loaded<unknown>>(NOTHING);

function queryOf<T>(question: Question<T>): Query<T> {
  const known = queries.get(question.key) as Query<T> | undefined;
  const query = known ?? new Query(question.fetch);
  for (const topic of question.topics) query.topics.add(topic);
  if (question.everyMs !== undefined) query.everyMs = question.everyMs;
  if (known === undefined) queries.set(question.key, query as Query<unknown>);
  return query;
}

/** The answer of a path. */
export function usePath<T>(
  path: string | null,
  topics: readonly Topic[],
  everyMs?: number,
): Loaded<T> & { reload: () => void } {
  return useQuestion<T>(
    path === null
      ? null
      : {
          key: path,
          fetch: (signal) => ask<T>(path, signal),
          topics,
          ...(everyMs === undefined ? {} : { everyMs }),
        },
  );
}

/** Every page of a list, up to a bound; `isWhole` says whether that was all of it. */
export interface Pages<T> {
  rows: T[];
  isWhole: boolean;
}

/** Every page of the list under a path, whose rows an answer has under that name. */
export function useList<T>(
  path: string | null,
  name: string,
  topics: readonly Topic[],
): Loaded<Pages<T>> & { reload: () => void } {
  return useQuestion<Pages<T>>(
    path === null
      ? null
      : { key: `all ${path}`, fetch: (signal) => askPages<T>(path, name, signal), topics },
  );
}

async function askPages<T>(path: string, name: string, signal: AbortSignal): Promise<Pages<T>> {
  const rows: T[] = [];
  let after: string | undefined;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const mark = path.includes("?") ? "&" : "?";
    const next = after === undefined ? path : `${path}${mark}after=${encodeURIComponent(after)}`;
    const answer = await ask<Record<string, unknown>>(next, signal);
    rows.push(...(answer[name] as T[]));
    after = answer.next as string | undefined;
    if (after === undefined) return { rows, isWhole: true };
  }
  return { rows, isWhole: false };
}
