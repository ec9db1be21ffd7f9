import { MultiServerMCPClient } from '@langchain/mcp-adapters';

const name = '@langchain/mcp-adapters';
export { name as package };
export const elicitation = false; // it has no handler for it
export const progress = true;

export async function open(url, hooks) {
  const client = new MultiServerMCPClient({
    mcpServers: { s: { transport: 'http', url } },
    onProgress: hooks.progressed,
  });
  const tools = await client.getTools();
  return {
    list: async () => tools.map((t) => t.name),
    call: async (tool, args) => {
      const out = await tools.find((t) => t.name === tool).invoke(args);
      return { text: typeof out === 'string' ? out : JSON.stringify(out), isError: false };
    },
    close: () => client.close(),
  };
}
