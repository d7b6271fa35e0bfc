import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { EventParser, type ServerEvent } from "./stream";

const TEXT =
  ': hello\nretry: 1500\n\nid: 7\nevent: spend\ndata: {"a":\r\ndata: 1}\r\n\r\nevent: empty\n\ndata:plain\n\n';
const EVENTS: ServerEvent[] = [
  { id: "7", type: "spend", data: '{"a":\n1}' },
  { id: "7", type: "message", data: "plain" },
];

function parse(pieces: Iterable<string>): { events: ServerEvent[]; retries: number[] } {
  const events: ServerEvent[] = [];
  const retries: number[] = [];
  const parser = new EventParser(
    (event) => events.push(event),
    (ms) => retries.push(ms),
  );
  for (const piece of pieces) parser.push(piece);
  return { events, retries };
}

describe("EventParser", () => {
  it("hands over whole events from pieces of any size", () => {
    for (let size = 1; size <= TEXT.length; size += 1) {
      const pieces = TEXT.match(new RegExp(`[^]{1,${size}}`, "g")) ?? [];
      assert.deepEqual(parse(pieces), { events: EVENTS, retries: [1500] });
    }
  });

  it("refuses an event without an end", () => {
    assert.throws(
      () => parse(Array.from({ length: 40 }, () => `data: ${"x".repeat(40_000)}\n`)),
      RangeError,
    );
  });
});
