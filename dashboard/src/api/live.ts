/**
 * The stream of events: it is opened with the session, reopened when it ends, and says which answers
 * are stale. While it is closed, everything is asked again every few seconds.
 */
import { Cell } from "../state/cell";
import { session } from "../state/session";
import { authHeaders, endRefusedSession, Problem, reachable } from "./http";
import { forgetAll, type Topic, touch } from "./queries";
import { EventParser } from "./stream";

export type LiveState = "off" | "connecting" | "live" | "lost";

/** Whether what happens is heard of at once. */
export const live = new Cell<LiveState>("off");

const PATH = "/api/v1/events";
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 15_000] as const;
/** The service says something every ten seconds, if only that it is there. */
const SILENCE_MS_MAX = 25_000;
const POLL_MS = 5000;
/** What passes without an event: windows end, holds expire. */
const REFRESH_MS = 60_000;
const EVERYTHING: readonly Topic[] | undefined = undefined;

const TOPICS: Readonly<Record<string, readonly Topic[]>> = {
  spend: ["spend", "budgets"],
  authorization: ["spend", "budgets", "authorizations"],
  denied: ["denials"],
  flip: ["flips"],
  alert: ["alerts"],
};

let stop: (() => void) | null = null;

/** Follow the session: listen while a person is logged in. */
export function startLive(): void {
  const follow = (): void => {
    stop?.();
    stop = null;
    if (session.value !== null) stop = listen();
    else {
      live.value = "off";
      forgetAll();
    }
  };
  let who = session.value?.credential;
  follow();
  session.watch((next) => {
    if (next?.credential === who) return; // another token of the same client
    who = next?.credential;
    forgetAll();
    follow();
  });
}

function listen(): () => void {
  const ended = new AbortController();
  let isEnded = false;
  let failures = 0;
  let cut = new AbortController();

  const run = async (): Promise<void> => {
    while (!isEnded) {
      await untilVisible(ended.signal);
      live.value = live.value === "live" ? "lost" : "connecting";
      try {
        cut = new AbortController();
        await readStream(AbortSignal.any([ended.signal, cut.signal]), () => {
          failures = 0;
        });
      } catch (error) {
        if (isEnded) return;
        if (error instanceof Problem && error.status === 401) {
          endRefusedSession();
          return;
        }
      }
      live.value = "lost";
      await pause(BACKOFF_MS[Math.min(failures, BACKOFF_MS.length - 1)] ?? 0, ended.signal);
      failures += 1;
    }
  };
  void run();
  let polls = 0;
  const timer = setInterval(() => {
    polls += 1;
    if (live.value !== "live" || polls % (REFRESH_MS / POLL_MS) === 0) touch(EVERYTHING);
  }, POLL_MS);
  const watch = new AbortController();
  addEventListener(
    "offline",
    () => {
      reachable.value = false;
      cut.abort(); // else the page notices only after a long silence
      touch(EVERYTHING);
    },
    { signal: watch.signal },
  );
  // A browser has few connections to one service, so hidden tabs hold none.
  document.addEventListener(
    "visibilitychange",
    () => {
      if (document.hidden) cut.abort();
    },
    { signal: watch.signal },
  );
  return () => {
    isEnded = true;
    clearInterval(timer);
    watch.abort();
    ended.abort();
  };
}

/**
 * Read the stream until it ends. Missed events do no harm: answers are read again when it reopens.
 */
async function readStream(signal: AbortSignal, onEvent: () => void): Promise<void> {
  const headers = { ...(await authHeaders()), accept: "text/event-stream" };
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
  try {
    const reply = await fetch(PATH, {
      headers,
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.any([signal, silence.signal]),
    });
    if (!reply.ok || reply.body === null) {
      throw new Problem(reply.status, `HTTP_${reply.status}`, "The stream was refused.");
    }
    reachable.value = true;
    live.value = "live";
    touch(EVERYTHING); // events may have been missed
    const parser = new EventParser(({ type }) => {
      onEvent();
      touch(TOPICS[type] ?? EVERYTHING);
    });
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
      parser.push(value);
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

/** Wait until the page is visible. */
function untilVisible(signal: AbortSignal): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const over = new AbortController();
    const look = (): void => {
      if (document.hidden && !signal.aborted) return;
      over.abort();
      resolve();
    };
    document.addEventListener("visibilitychange", look, { signal: over.signal });
    signal.addEventListener("abort", look, { signal: over.signal });
  });
}

/** Wait, but no longer than until the network is back. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const over = new AbortController();
    const finish = (): void => {
      over.abort();
      resolve();
    };
    const timer = setTimeout(finish, ms * (0.75 + Math.random() / 2));
    over.signal.addEventListener("abort", () => clearTimeout(timer));
    signal.addEventListener("abort", finish, { signal: over.signal });
    addEventListener("online", finish, { signal: over.signal });
  });
}
