// Bundler of src into one script and one style: node build.mjs OUT CHECKSUM (see tools/web).

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const modules = join(process.cwd(), "node_modules");
const esbuild = createRequire(join(modules, "package.json"))("esbuild");
const [out, checksum] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));

const { version } = JSON.parse(readFileSync(join(modules, "uplot/package.json"), "utf8"));
const licence = readFileSync(join(modules, "uplot/LICENSE"), "utf8").trim();
const banner = (what) => `/* pytorch_alloctrace: the ${what} of its report. Made by tools/web; sources sha256:${checksum}\n\nContains uPlot ${version}:\n\n${licence}\n*/`;

const result = await esbuild.build({
  entryPoints: { report: join(here, "src/main.ts") },
  stdin: undefined,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  nodePaths: [modules],
  outdir: out,
  write: false,
});
for (const file of result.outputFiles) {
  writeFileSync(file.path, `${banner(file.path.endsWith(".css") ? "style" : "script")}\n${file.text}`);
}
writeFileSync(join(out, "THIRD_PARTY.txt"), `The report contains:\n\nuPlot ${version}, https://github.com/leeoniya/uPlot\n\n${licence}\n`);
