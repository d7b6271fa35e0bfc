import assert from "node:assert/strict";
import { it } from "node:test";
import { csvText } from "./csv";

it("quotes what must be, and disarms formulas", () => {
  const rows = [
    ["=1+1", 12, null],
    ['say "hi", twice', 9007199254740993n, true],
  ];
  assert.equal(
    csvText(["name", "cost_usd_micros", "note"], rows),
    'name,cost_usd_micros,note\r\n\'=1+1,12,\r\n"say ""hi"", twice",9007199254740993,true\r\n',
  );
});
