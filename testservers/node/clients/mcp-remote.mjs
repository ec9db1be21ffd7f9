// mcp-remote as a desktop program runs it: a stdio server that is a client.
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { fileURLToPath } from 'node:url';
import { openOn } from './sdk-v1.mjs';

const name = 'mcp-remote';
export { name as package };
export const elicitation = true;
export const progress = true;

export async function open(url, hooks) {
  const program = fileURLToPath(new URL('../node_modules/mcp-remote/dist/proxy.js', import.meta.url));
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [program, url],
    env: { PATH: process.env.PATH, HOME: process.env.HOME },
    stderr: 'pipe',
  });
  const log = [];
  transport.stderr.on('data', (chunk) => log.push(String(chunk)));
  try {
    return await openOn(transport, hooks);
  } catch (error) {
    // A desktop program shows its log where the connection was closed.
    throw new Error(`${error.message}; its log: ${log.join('').slice(-2000)}`);
  }
}
