// node shot.mjs CHROMIUM URL OUT.png NOW_MS: a picture of the whole page at a time that stands still.
// Prints a JSON line with the queries that failed or came back empty, and the errors of the page.
import { chromium } from 'playwright-core';

const [executablePath, url, path, now] = process.argv.slice(2);
const QUIET_MS = 1200; // without a new query
const LONGEST_MS = 60000;
const args = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--force-device-scale-factor=1', '--font-render-hinting=none',
  '--disable-lcd-text', '--disable-partial-raster', '--disable-skia-runtime-opts', '--disable-checker-imaging',
];
const browser = await chromium.launch({ executablePath, args });
try {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 }, timezoneId: 'UTC', locale: 'en-GB', reducedMotion: 'reduce' });
  const errors = [];
  page.on('pageerror', (error) => errors.push(String(error.stack).slice(0, 600)));
  // Grafana's fonts come with its server; the system's stand in for them.
  page.on('console', (message) => message.type() === 'error' && !message.text().startsWith('Failed to load resource') && errors.push(message.text().slice(0, 600)));
  page.on('response', (answer) => answer.status() === 404 && !answer.url().endsWith('.woff2') && errors.push(`404 ${answer.url()}`));
  await page.clock.setFixedTime(Number(now));
  await page.goto(url);
  // Panels out of sight ask nothing: the page must be as high as the dashboard before anything is waited for.
  await page.waitForFunction(() => window.__height || window.__failed, undefined, { timeout: LONGEST_MS });
  const failed = await page.evaluate(() => window.__failed);
  if (failed) throw new Error(failed);
  await page.setViewportSize({ width: 1440, height: Math.ceil(await page.evaluate(() => window.__height)) });
  let seen = -1;
  for (let waited = 0; waited < LONGEST_MS; waited += QUIET_MS) {
    await page.waitForTimeout(QUIET_MS);
    const count = await page.evaluate(() => window.__queries.length);
    if (count === seen) break;
    seen = count;
  }
  const queries = await page.evaluate(() => window.__queries);
  await page.screenshot({ path });
  console.log(JSON.stringify({ queries: queries.length, odd: queries.filter((one) => one.status !== 'success' || !one.count), errors }));
} finally {
  await browser.close();
}
