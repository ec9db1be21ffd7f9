import { MCPServerStreamableHttp } from '@openai/agents';
import { read } from './result.mjs';

const name = '@openai/agents';
export { name as package };
export const elicitation = false; // it has no handler for it
export const progress = false; // its callTool takes no callback

export async function open(url) {
  const server = new MCPServerStreamableHttp({ url, name: 's' });
  await server.connect();
  return {
    list: async () => (await server.listTools()).map((t) => t.name),
    call: async (tool, args) => read(await server.callToolResult(tool, args)),
    close: () => server.close(),
  };
}
