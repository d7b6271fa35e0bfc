// Finds files that are imported without their ending, and strips their types. The result is cached
// under the hash of the file, because the compiler takes a second to load.
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const KEPT = new URL("../node_modules/.cache/pricekeeper/", import.meta.url);
const ENDINGS = [".ts", ".tsx"];

/** @type {import("node:module").ResolveHook} */
export async function resolve(name, context, next) {
  if (name.startsWith(".") && context.parentURL !== undefined) {
    for (const ending of ENDINGS) {
      const url = new URL(name + ending, context.parentURL);
      if (existsSync(url)) return { url: url.href, format: "module", shortCircuit: true };
    }
  }
  return next(name, context);
}

/** @type {import("node:module").LoadHook} */
export async function load(url, context, next) {
  if (url.endsWith(".css")) return { format: "module", source: "", shortCircuit: true };
  if (!ENDINGS.some((ending) => url.endsWith(ending))) return next(url, context);
  const text = await readFile(fileURLToPath(url), "utf8");
  const name = createHash("sha256").update(`${url}\0${text}`).digest("hex");
  const kept = new URL(`${name}.mjs`, KEPT);
  const source = await readFile(kept, "utf8").catch(() => compile(url, text, kept));
  return { format: "module", source, shortCircuit: true };
}

/**
 * @param {string} url
 * @param {string} text
 * @param {URL} kept
 */
async function compile(url, text, kept) {
  const { default: ts } = await import("typescript");
  const { outputText } = ts.transpileModule(text, {
    fileName: url,
    compilerOptions: {
      module: ts.ModuleKind.ESNext,
      target: ts.ScriptTarget.ES2022,
      jsx: ts.JsxEmit.ReactJSX,
      jsxImportSource: "preact",
      verbatimModuleSyntax: true,
      inlineSourceMap: true,
    },
  });
  await mkdir(KEPT, { recursive: true });
  const fresh = new URL(`${kept.href}.${process.pid}`);
  await writeFile(fresh, outputText);
  await rename(fresh, kept);
  return outputText;
}
