import { ElicitationRequestSchema, createMCPClient } from '@ai-sdk/mcp';
import { accepted, read } from './result.mjs';

const name = '@ai-sdk/mcp';
export { name as package };
export const elicitation = true;
export const progress = false; // its callTool takes no callback

export async function open(url) {
  const client = await createMCPClient({ transport: { type: 'http', url }, capabilities: { elicitation: {} } });
  client.onElicitationRequest(ElicitationRequestSchema, async () => accepted);
  const tools = await client.tools();
  return {
    list: async () => (await client.listTools()).tools.map((t) => t.name),
    // As a model's tool call runs it.
    call: async (tool, args) => read(await tools[tool].execute(args, { toolCallId: '1', messages: [] })),
    close: () => client.close(),
  };
}
