// Vercel's AI SDK with its default provider for Bedrock, which has no setting here.
// Its packages are where CLIENT_PACKAGES says, because node looks beside this file otherwise.
import { createRequire } from "node:module";
import { drive, PIECES_READ } from "./driving.mjs";

const require = createRequire(`${process.env.CLIENT_PACKAGES}/`);
const { bedrock } = require("@ai-sdk/amazon-bedrock");
const { generateText, streamText } = require("ai");

async function take(step) {
  const asked = { model: bedrock(step.model), prompt: step.prompt };
  if (step.do === "call") return (await generateText(asked)).text.length;
  const left = new AbortController();
  let failure;
  const onError = ({ error }) => {
    failure = error;
  };
  let chars = 0;
  let count = 0;
  for await (const piece of streamText({ ...asked, abortSignal: left.signal, onError }).textStream) {
    chars += piece.length;
    count += 1;
    if (step.do === "abandon" && count >= PIECES_READ) {
      left.abort();
      break;
    }
  }
  if (failure) throw failure;
  return chars;
}

await drive(take);
