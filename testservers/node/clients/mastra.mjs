import { MCPClient } from '@mastra/mcp';
import { accepted } from './result.mjs';

const name = '@mastra/mcp';
export { name as package };
export const elicitation = true;
export const progress = true;

let opened = 0;

export async function open(url, hooks) {
  const client = new MCPClient({
    id: `s${++opened}`,
    servers: { s: { url: new URL(url), enableProgressTracking: true, inputRequests: async () => accepted } },
  });
  await client.progress.onUpdate('s', hooks.progressed);
  const found = await client.listToolsWithErrors();
  if (found.errors.s) throw new Error(found.errors.s);
  const { tools } = found;
  return {
    list: async () => Object.keys(await client.listTools()).map((t) => t.replace(/^s_/, '')),
    call: async (tool, args) => {
      const out = await tools[`s_${tool}`].execute(args, {});
      const text = out?.content?.map((c) => c.text).join('\n') ?? JSON.stringify(out);
      return { text, isError: Boolean(out?.isError) };
    },
    close: () => client.disconnect(),
  };
}
