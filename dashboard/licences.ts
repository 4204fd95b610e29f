import type { Plugin, Rollup } from "vite";

// Where the hub serves the licences, and where the wheel has them below static/.
const FILE = "assets/licences.txt";
const HEAD = `The scripts and styles of Ostler's dashboard contain the packages below, each under its own licence.
Ostler itself is under the Apache License 2.0.
`;
const RULE = "-".repeat(80);

type Package = { name: string; version: string; license: string };

/** Writes the name, version and licence text of every bundled package, and fails if one of them has none. */
export function licences(): Plugin {
  return {
    name: "licences",
    apply: "build",
    async generateBundle(_options, bundle) {
      const folders = new Set([...this.getModuleIds()].map(folderOf).filter((folder) => folder !== null));
      const parts = await Promise.all([...folders].sort().map((folder) => entry(this, folder)));
      this.emitFile({ type: "asset", fileName: FILE, source: [HEAD, ...parts].join(`\n${RULE}\n\n`) });
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        const foreign = Object.keys(chunk.modules).filter((id) => id.startsWith("\0") && chunk.modules[id]?.code);
        // A build tool adds such code, and no folder of a package says under which licence.
        if (foreign.length) this.error(`no licence for ${foreign.join(", ")}`);
        chunk.code = `/*! Licences of the packages in this file: /${FILE} */\n${chunk.code}`;
      }
    },
  };
}

/** The folder of the package that a module belongs to; null for the dashboard's own modules. */
function folderOf(id: string): string | null {
  return /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id.replaceAll("\\", "/"))?.[0] ?? null;
}

async function entry(context: Rollup.PluginContext, folder: string): Promise<string> {
  const about = JSON.parse(await context.fs.readFile(`${folder}/package.json`, { encoding: "utf8" })) as Package;
  const files = (await context.fs.readdir(folder)).filter((name) => /^(licen[cs]e|notice)/i.test(name)).sort();
  if (!about.license || !files.length) context.error(`${about.name} ${about.version} has no licence to pass on`);
  const texts = await Promise.all(files.map((name) => context.fs.readFile(`${folder}/${name}`, { encoding: "utf8" })));
  return [`${about.name} ${about.version} (${about.license})`, ...texts.map((text) => text.trim()), ""].join("\n\n");
}
