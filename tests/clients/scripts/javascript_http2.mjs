// The AWS SDK for JavaScript as it comes: by HTTP/2, over TLS, which ends in front of the gateway.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { request } from "node:http";
import { createSecureServer } from "node:http2";

const [key, cert] = [`${process.env.HOME}/front.key`, `${process.env.HOME}/front.crt`];
const made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"];
execFileSync("openssl", [...made, "-keyout", key, "-out", cert], { stdio: "ignore" });

const gateway = new URL(process.env.AWS_ENDPOINT_URL_BEDROCK_RUNTIME);
const front = createSecureServer({ key: readFileSync(key), cert: readFileSync(cert) });
const OF_A_CONNECTION = ["connection", "keep-alive", "transfer-encoding"];
let streams = 0;

front.on("stream", (stream, asked) => {
  streams += 1;
  const named = Object.entries(asked).filter(([name]) => !name.startsWith(":"));
  const onward = request({
    host: gateway.hostname,
    port: gateway.port,
    method: asked[":method"],
    path: asked[":path"],
    headers: { ...Object.fromEntries(named), host: asked[":authority"] },
  });
  onward.on("response", (reply) => {
    const kept = Object.entries(reply.headers).filter(([name]) => !OF_A_CONNECTION.includes(name));
    if (!stream.destroyed) stream.respond({ ...Object.fromEntries(kept), ":status": reply.statusCode });
    reply.on("error", () => stream.destroy());
    reply.pipe(stream);
  });
  onward.on("error", () => stream.destroy());
  stream.on("error", () => {});
  stream.on("close", () => onward.destroy());
  stream.pipe(onward);
});

await new Promise((ready) => front.listen(0, "127.0.0.1", ready));
process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0"; // its certificate was made a moment ago
process.env.NODE_NO_WARNINGS = "1";
process.env.AWS_ENDPOINT_URL_BEDROCK_RUNTIME = `https://127.0.0.1:${front.address().port}${gateway.pathname}`;
process.env.CLIENT_HTTP = "2";
process.on("exit", () => {
  if (!streams) process.exitCode = 1; // it spoke another protocol
});
await import("./javascript_sdk.mjs");
front.close();
