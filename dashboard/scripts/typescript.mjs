// Lets Node run the TypeScript of the tests as it is: `node --import ./scripts/typescript.mjs`.
import { register } from "node:module";

register("./typescript_hooks.mjs", import.meta.url);
