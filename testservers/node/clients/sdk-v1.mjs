import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { accepted, read } from './result.mjs';

export { name as package, elicitation, progress };
const name = '@modelcontextprotocol/sdk';
const elicitation = true;
const progress = true;

export async function open(url, hooks) {
  return openOn(new StreamableHTTPClientTransport(new URL(url)), hooks, (t) => t.terminateSession());
}

// openOn is also for the programs that this SDK talks to over stdio.
export async function openOn(transport, hooks, beforeClose = async () => {}) {
  const client = new Client({ name: 'typescript', version: '1' }, { capabilities: { elicitation: {} } });
  client.setRequestHandler(ElicitRequestSchema, async () => accepted);
  await client.connect(transport);
  return {
    list: async () => (await client.listTools()).tools.map((t) => t.name),
    call: async (tool, args, wanted) =>
      read(await client.callTool({ name: tool, arguments: args }, undefined, wanted ? { onprogress: hooks.progressed } : undefined)),
    close: async () => {
      await beforeClose(transport);
      await client.close();
    },
  };
}
