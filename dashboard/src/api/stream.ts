/**
 * Server-sent events over `fetch`, because the browser's `EventSource` can't send credentials in a
 * header. It reads, parses and reconnects; it does not interpret events.
 */

/** One event as it came. */
export interface ServerEvent {
  id: string | null;
  type: string;
  data: string;
}

/** How much of an event may be waited for before it must be something else than an event. */
const EVENT_CHARS_MAX = 1 << 20;

/** Takes text as it comes, in pieces of any size, and hands over whole events. */
export class EventParser {
  #rest = "";
  #type = "";
  #data: string[] = [];
  #id: string | null = null;
  #size = 0;

  constructor(
    readonly onEvent: (event: ServerEvent) => void,
    /** How long to wait before reconnecting, if the service says so. */
    readonly onRetry: (ms: number) => void = () => undefined,
  ) {}

  push(text: string): void {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) this.#take(line);
    if (this.#rest.length + this.#size > EVENT_CHARS_MAX) throw new RangeError("an endless event");
  }

  #take(line: string): void {
    if (line === "") {
      if (this.#data.length > 0) {
        this.onEvent({
          id: this.#id,
          type: this.#type || "message",
          data: this.#data.join("\n"),
        });
      }
      [this.#type, this.#data, this.#size] = ["", [], 0];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment, which keeps the connection open
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    this.#size += line.length;
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#type = value;
    else if (name === "id") this.#id = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.onRetry(Number(value));
  }
}
