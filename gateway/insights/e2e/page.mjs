// Drives Insights → Leases in Chromium and fails loudly. What it needs comes by
// environment from page_test.go, which judges what happened behind the page.
import { createRequire } from 'node:module';
import assert from 'node:assert/strict';

const env = process.env;
const { chromium } = createRequire(env.NODE_PARTS + '/')('playwright-core');

const browser = await chromium.launch({
  executablePath: env.CHROMIUM,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const complaints = [];
const open = async (options) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 1000 }, ...options });
  context.setDefaultTimeout(15000);
  const page = await context.newPage();
  page.on('pageerror', (e) => complaints.push(`script: ${e.message}`));
  page.on('console', (m) => { if (/Content.Security|violat/i.test(m.text())) complaints.push(m.text()); });
  return page;
};
const signIn = async (page) => {
  await page.goto(env.PAGE);
  await page.getByLabel('Key of a tenant admin').fill(env.KEY);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Leases' }).waitFor();
};
const rows = (page) => page.locator('tr[data-token]');
const settled = async (page, n) => { await page.waitForFunction((n) => document.querySelectorAll('tr[data-token]').length === n, n); };
const fits = async (page, what) => assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${what} scrolls sideways`);
const step = (name) => console.log(`ok ${name}`);

try {
  const total = Number(env.TOTAL);
  const page = await open({ colorScheme: 'light', deviceScaleFactor: 2 });

  await page.goto(env.PAGE);
  await page.getByLabel('Key of a tenant admin').fill('not-a-key');
  await page.keyboard.press('Enter');
  await page.getByRole('alert').filter({ hasText: 'does not open acme' }).waitFor();
  step('a wrong key is refused by a sentence');

  await signIn(page);
  await settled(page, total);
  await page.locator('#status[data-state=live]').waitFor();
  assert.equal(await page.evaluate(() => document.cookie), '', 'a script can read the cookie');
  step('list');

  await page.getByLabel('User').fill('ada');
  await page.getByRole('button', { name: 'Filter' }).click();
  await settled(page, Number(env.OF_ADA));
  assert.ok(new URL(page.url()).searchParams.get('user') === 'ada');
  await page.getByRole('link', { name: 'Clear' }).click();
  await settled(page, total);
  step('filter');

  await fits(page, 'the page');
  await page.screenshot({ path: env.SHOTS + '/insights.png', fullPage: true });
  const dark = await open({ colorScheme: 'dark' });
  await signIn(dark);
  await settled(dark, total);
  await dark.screenshot({ path: env.SHOTS + '/dark.png', fullPage: true });
  const phone = await open({ viewport: { width: 375, height: 740 }, deviceScaleFactor: 2 });
  await signIn(phone);
  await fits(phone, 'the page on a phone');
  await phone.screenshot({ path: env.SHOTS + '/phone.png', fullPage: true });
  await phone.context().close();
  step('dark, and on a phone');

  // By keyboard alone: to a row's button, into the question, out again.
  const last = rows(page).filter({ hasText: 'edsger' });
  const token = await last.getAttribute('data-token');
  await last.locator('a.revoke').focus();
  await page.keyboard.press('Enter');
  await page.locator('dialog[open]').waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), 'ask-no', 'the safe answer has not the keyboard');
  await page.keyboard.press('Escape');
  await page.locator('dialog[open]').waitFor({ state: 'detached' }).catch(() => {});
  assert.equal(await rows(page).count(), total);
  step('a question by keyboard, and no');

  await page.locator(`#revoke-${token}`).focus();
  await page.keyboard.press('Enter');
  await page.keyboard.press('Shift+Tab');
  await page.keyboard.press('Enter');
  await page.getByText('The lease was revoked').waitFor();
  await settled(page, total - 1);
  assert.equal(await page.locator(`tr[data-token="${token}"]`).count(), 0);
  step('revoke');
  const seenIn = await dark.evaluate(async (token) => {
    const begun = performance.now();
    while (document.querySelector(`tr[data-token="${token}"]`)) {
      if (performance.now() - begun > 5000) return Infinity;
      await new Promise((r) => setTimeout(r, 20));
    }
    return performance.now() - begun;
  }, token);
  assert.ok(seenIn <= 2000, `another window saw it after ${seenIn} ms`);
  assert.ok(await dark.locator('.event.revoked').first().isVisible());
  step('another window sees the row vanish');

  // A client gives its slot back; the page shows it within 2 s without a reload.
  const ended = await fetch(env.END_URL, { method: 'DELETE', headers: { 'Mcp-Session-Id': env.END_SESSION, Authorization: 'Bearer ' + env.BRAIN, 'X-Vance-User': env.END_USER } });
  assert.ok(ended.status < 300, `DELETE: ${ended.status}`);
  const begun = performance.now();
  await settled(dark, total - 2);
  const freed = performance.now() - begun;
  assert.ok(freed <= 2000, `a freed slot was seen after ${freed} ms`);
  step('a freed slot is seen live');

  // Without a script: a page asks, a form answers.
  const plain = await open({ javaScriptEnabled: false });
  await signIn(plain);
  assert.equal(await rows(plain).count(), total - 2);
  await rows(plain).filter({ hasText: 'barbara' }).locator('a.revoke').click();
  await plain.getByRole('heading', { name: 'Revoke this lease?' }).waitFor();
  await plain.getByRole('button', { name: 'Revoke' }).click();
  await plain.getByText('The lease was revoked').waitFor();
  assert.equal(await rows(plain).count(), total - 3);
  step('revoke without a script');

  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('heading', { name: 'Sign in to acme' }).waitFor();
  await page.goto(env.PAGE + '?user=ada');
  await page.getByRole('heading', { name: 'Sign in to acme' }).waitFor();
  step('sign out');

  assert.deepEqual(complaints, []);
  step('no script error, nothing against the content security policy');
} catch (e) {
  console.error(e);
  process.exitCode = 1;
} finally {
  await browser.close();
}
