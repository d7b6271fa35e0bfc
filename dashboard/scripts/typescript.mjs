// Lets Node run the tests' TypeScript directly: `node --import ./scripts/typescript.mjs`.
import { register } from "node:module";

register("./typescript_hooks.mjs", import.meta.url);
