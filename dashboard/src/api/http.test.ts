import assert from "node:assert/strict";
import { it } from "node:test";

Object.assign(globalThis, { sessionStorage: { getItem: () => null } });

it("writes numbers whole, however large", async () => {
  const { writeJson } = await import("./http");
  const body = {
    limit: 9007199254740993n,
    name: 'a"b',
    list: [1, null, { on: true }],
    no: undefined,
  };
  assert.equal(
    writeJson(body),
    '{"limit":9007199254740993,"name":"a\\"b","list":[1,null,{"on":true}]}',
  );
});
