// The AWS SDK for JavaScript. It speaks HTTP/2 to Bedrock unless it is given another handler.
// Its packages are where CLIENT_PACKAGES says, because node looks beside this file otherwise.
import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";

const require = createRequire(`${process.env.CLIENT_PACKAGES}/`);
const { BedrockRuntimeClient, ConverseCommand, ConverseStreamCommand } = require("@aws-sdk/client-bedrock-runtime");
const { NodeHttpHandler } = require("@smithy/node-http-handler");

const PIECES_READ = 2;
const handler = process.env.CLIENT_HTTP === "2" ? {} : { requestHandler: new NodeHttpHandler() };
const bedrock = new BedrockRuntimeClient(handler);

const asked = (step) => ({
  modelId: step.model,
  messages: [{ role: "user", content: [{ text: step.prompt }] }],
});

async function take(step) {
  if (step.do === "call") {
    const reply = await bedrock.send(new ConverseCommand(asked(step)));
    return reply.output.message.content[0].text.length;
  }
  const left = new AbortController();
  const reply = await bedrock.send(new ConverseStreamCommand(asked(step)), { abortSignal: left.signal });
  let chars = 0;
  let count = 0;
  for await (const event of reply.stream) {
    if (!event.contentBlockDelta) continue;
    chars += event.contentBlockDelta.delta.text.length;
    count += 1;
    if (step.do === "abandon" && count >= PIECES_READ) {
      left.abort();
      break;
    }
  }
  return chars;
}

const done = [];
for (const step of JSON.parse(process.argv[2])) {
  if (step.do === "pause") {
    await pause(step.secs * 1000);
    continue;
  }
  const began = performance.now();
  const secs = () => Math.round((performance.now() - began) / 10) / 100;
  try {
    done.push({ outcome: "ok", chars: await take(step), secs: secs(), errors: [] });
  } catch (error) {
    const message = String(error.message).slice(0, 300);
    done.push({ outcome: "error", chars: 0, secs: secs(), errors: [error.name], message });
  }
}
console.log(JSON.stringify({ steps: done }));
bedrock.destroy();
