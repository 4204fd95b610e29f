import { defineConfig } from "vite";
import { licences } from "./licences";

// Built into the package, from where the hub serves it. No inline script or style: the hub's policy forbids both.
export default defineConfig({
  base: "/",
  plugins: [licences()],
  build: {
    outDir: "../src/ostler/dashboard/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  server: { proxy: { "/v1": "http://127.0.0.1:7600", "/openapi.json": "http://127.0.0.1:7600" } },
});
