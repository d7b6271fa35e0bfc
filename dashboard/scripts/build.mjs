// Builds the page into the folder that the service takes it from: git ignores it, a wheel has it.
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants } from "node:zlib";
import * as esbuild from "esbuild-wasm";

export const SOURCE = fileURLToPath(new URL("..", import.meta.url));
export const OUT = fileURLToPath(new URL("../../src/pricekeeper/http/page", import.meta.url));

/**
 * How the page is bundled. Nothing is inlined: the service's content security policy admits no inline
 * script or style and no data: address.
 * @type {esbuild.BuildOptions}
 */
export const OPTIONS = {
  absWorkingDir: SOURCE,
  entryPoints: ["src/main.tsx", "src/icon.svg"],
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".svg": "copy" },
  entryNames: "assets/[name]-[hash]",
  outdir: OUT,
  metafile: true,
  logLevel: "warning",
};

/**
 * The HTML, with the names that the bundle got.
 * @param {esbuild.Metafile} metafile
 */
export async function indexHtml(metafile) {
  let html = await readFile(`${SOURCE}/index.html`, "utf8");
  for (const path of Object.keys(metafile.outputs)) {
    const name = basename(path);
    const source = name.replace(/-[A-Z0-9]{8}(?=\.)/, "");
    html = html.replace(`"/${source}"`, `"/assets/${name}"`);
  }
  return html;
}

async function build() {
  await rm(OUT, { recursive: true, force: true });
  await mkdir(OUT, { recursive: true });
  const { metafile } = await esbuild.build({ ...OPTIONS, minify: true, legalComments: "none" });
  if (metafile === undefined) throw new Error("esbuild said nothing of what it has made");
  await writeFile(`${OUT}/index.html`, await indexHtml(metafile));
  const paths = Object.keys(metafile.outputs).map((path) =>
    fileURLToPath(new URL(path, `file://${SOURCE}`)),
  );
  for (const path of [...paths, `${OUT}/index.html`]) {
    const data = await readFile(path);
    const small = brotliCompressSync(data, {
      params: { [constants.BROTLI_PARAM_QUALITY]: 11 },
    });
    await writeFile(`${path}.br`, small);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await build();
  await esbuild.stop();
}
