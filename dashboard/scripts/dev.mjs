// Serves the page during development: rebuilt at each change, with the data of a running service.
//     PRICEKEEPER_URL=http://127.0.0.1:8080 npm run dev
import { mkdtemp, readFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { basename, extname, join } from "node:path";
import * as esbuild from "esbuild-wasm";
import { indexHtml, OPTIONS } from "./build.mjs";

const SERVICE = process.env.PRICEKEEPER_URL ?? "http://127.0.0.1:8080";
const PORT = Number(process.env.PORT ?? 5173);
const TYPES = {
  ".css": "text/css",
  ".js": "text/javascript",
  ".svg": "image/svg+xml",
  ".map": "application/json",
};

const folder = await mkdtemp(join(tmpdir(), "pricekeeper-page-"));
/** @type {esbuild.Metafile | undefined} */
let built;
const context = await esbuild.context({
  ...OPTIONS,
  outdir: folder,
  sourcemap: true,
  plugins: [
    {
      name: "keep",
      setup: ({ onEnd }) => {
        onEnd(({ metafile }) => {
          built = metafile ?? built;
        });
      },
    },
  ],
});
await context.rebuild();
await context.watch();

createServer(async (asked, reply) => {
  const { pathname } = new URL(asked.url ?? "/", "http://localhost");
  if (pathname === "/" && built !== undefined) {
    reply.writeHead(200, { "content-type": "text/html; charset=utf-8" });
    reply.end(await indexHtml(built));
  } else if (pathname.startsWith("/assets/")) {
    const data = await readFile(join(folder, "assets", basename(pathname))).catch(() => null);
    const type = TYPES[/** @type {keyof typeof TYPES} */ (extname(pathname))] ?? "text/plain";
    reply.writeHead(data === null ? 404 : 200, {
      "content-type": type,
      "cache-control": "no-store",
    });
    reply.end(data);
  } else {
    const { method, headers } = asked;
    const passed = request(new URL(asked.url ?? "/", SERVICE), { method, headers }, (answer) => {
      reply.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(reply);
    });
    passed.on("error", () => reply.destroy());
    asked.pipe(passed);
  }
}).listen(PORT, "127.0.0.1", () => {
  process.stdout.write(`the page: http://127.0.0.1:${PORT}/, with the data of ${SERVICE}\n`);
});
