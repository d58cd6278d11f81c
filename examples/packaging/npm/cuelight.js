#!/usr/bin/env node
// Runs the program that the package of this platform contains.
"use strict";

const { spawn } = require("node:child_process");
const os = require("node:os");

function program() {
  const name = `@cuelight/${process.platform}-${process.arch}`;
  try {
    return require.resolve(`${name}/bin/cuelight`);
  } catch {
    console.error(`error: the package ${name} is not installed; install without --omit=optional, or build from source`);
    process.exit(1);
  }
}

const child = spawn(program(), process.argv.slice(2), { stdio: "inherit" });
// The terminal sends Ctrl-C to both; what is sent to this process alone is passed on.
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
process.on("SIGINT", () => {});
child.on("error", (error) => {
  console.error(`error: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + os.constants.signals[signal] : code));
