// The AWS SDK for JavaScript. It speaks HTTP/2 to Bedrock unless it is given another handler.
// Its packages are where CLIENT_PACKAGES says, because node looks beside this file otherwise.
import { createRequire } from "node:module";
import { drive, PIECES_READ } from "./driving.mjs";

const require = createRequire(`${process.env.CLIENT_PACKAGES}/`);
const { BedrockRuntimeClient, ConverseCommand, ConverseStreamCommand } = require("@aws-sdk/client-bedrock-runtime");
const { NodeHttpHandler } = require("@smithy/node-http-handler");

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

await drive(take);
bedrock.destroy();
