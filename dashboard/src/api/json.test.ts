import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { parseJson } from "./json";

describe("parseJson", () => {
  it("leaves what a number can hold a number", () => {
    assert.deepEqual(parseJson('{"a": 9007199254740991, "b": -1, "c": 1.5}'), {
      a: Number.MAX_SAFE_INTEGER,
      b: -1,
      c: 1.5,
    });
  });

  it("keeps every digit of what a number can't hold, or says that it can't", () => {
    const text = '{"rows": [{"cost_usd_micros": 9007199254740993}]}';
    const canTell = (() => {
      let source: unknown;
      JSON.parse("1", ((_k: string, _v: unknown, c?: { source?: string }) => {
        source = c?.source;
      }) as never);
      return source !== undefined;
    })();
    if (canTell) {
      assert.deepEqual(parseJson(text), { rows: [{ cost_usd_micros: 9007199254740993n }] });
    } else {
      assert.throws(() => parseJson(text), /2\^53/);
    }
  });

  it("does not take digits of a text for a number", () => {
    assert.deepEqual(parseJson('{"id": "12345678901234567890"}'), { id: "12345678901234567890" });
  });
});
