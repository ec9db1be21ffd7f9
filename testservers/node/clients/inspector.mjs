// The Inspector's CLI is a program that opens a session for each command.
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { read } from './result.mjs';

const name = '@modelcontextprotocol/inspector';
export { name as package };
export const elicitation = false; // its command line cannot answer
export const progress = false; // nor show events

const program = fileURLToPath(new URL('../node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js', import.meta.url));

export async function open(url) {
  const run = async (...args) => {
    try {
      const { stdout } = await promisify(execFile)(process.execPath,
        [program, '--cli', url, '--transport', 'http', ...args], { timeout: 30_000, maxBuffer: 1 << 24 });
      return JSON.parse(stdout);
    } catch (error) {
      // A tool's error is printed like a result and is an exit code as well.
      try {
        return JSON.parse(error.stdout);
      } catch {
        throw new Error(error.stderr || error.message);
      }
    }
  };
  const list = async () => (await run('--method', 'tools/list')).tools.map((t) => t.name);
  await list();
  return {
    list,
    call: async (tool, args) => {
      const pairs = Object.entries(args).map(([k, v]) => `${k}=${v}`);
      return read(await run('--method', 'tools/call', '--tool-name', tool, ...(pairs.length ? ['--tool-arg', ...pairs] : [])));
    },
    close: async () => {},
  };
}
