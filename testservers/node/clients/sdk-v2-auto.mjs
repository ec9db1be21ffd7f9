// The same SDK, told to try the revision without sessions first.
import { openAs } from './sdk-v2.mjs';

export { package, elicitation, progress } from './sdk-v2.mjs';
export const open = (url, hooks) => openAs(url, hooks, { mode: 'auto' });
