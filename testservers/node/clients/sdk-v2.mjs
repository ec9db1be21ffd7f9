import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { accepted, read } from './result.mjs';

const name = '@modelcontextprotocol/client';
export { name as package };
export const elicitation = true;
export const progress = true;

export const open = (url, hooks) => openAs(url, hooks, undefined);

export async function openAs(url, hooks, versionNegotiation) {
  const transport = new StreamableHTTPClientTransport(new URL(url));
  const client = new Client(
    { name: 'typescript', version: '2' },
    { capabilities: { elicitation: {} }, ...(versionNegotiation && { versionNegotiation }) },
  );
  client.setRequestHandler('elicitation/create', async () => accepted);
  await client.connect(transport);
  return {
    list: async () => (await client.listTools()).tools.map((t) => t.name),
    call: async (tool, args, wanted) =>
      read(await client.callTool({ name: tool, arguments: args }, wanted ? { onprogress: hooks.progressed } : undefined)),
    close: async () => {
      await transport.terminateSession();
      await client.close();
    },
  };
}
