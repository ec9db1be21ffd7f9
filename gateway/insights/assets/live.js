// Live updates and the confirmation in place. Without this script the page
// still shows, filters and revokes.
'use strict';
(() => {
  const middle = document.getElementById('middle');
  if (!middle) return;
  const status = document.getElementById('status');
  const statusText = document.getElementById('status-text');
  const ask = document.getElementById('ask');
  let since = performance.now();

  const say = (state, text) => {
    if (status.dataset.state === state && statusText.textContent === text) return;
    status.dataset.state = state;
    statusText.textContent = text;
  };

  // The same form as on the server: 8s, 3m10s, 2h5m, 3d4h.
  const span = (s) => {
    if (s < 60) return `${s}s`;
    if (s < 3600) return `${Math.floor(s / 60)}m${s % 60}s`;
    if (s < 86400) return `${Math.floor(s / 3600)}h${Math.floor(s % 3600 / 60)}m`;
    return `${Math.floor(s / 86400)}d${Math.floor(s % 86400 / 3600)}h`;
  };

  // The server says an age once; the passing of time is counted here.
  const tick = () => {
    const gone = Math.floor((performance.now() - since) / 1000);
    for (const e of middle.querySelectorAll('[data-up]')) e.textContent = span(Number(e.dataset.up) + gone);
    for (const e of middle.querySelectorAll('[data-down]')) {
      const left = Math.max(0, Number(e.dataset.down) - gone);
      e.textContent = span(left);
      e.classList.toggle('over', left < 10);
    }
  };
  setInterval(tick, 1000);

  // The middle is what the server rendered; what had the keyboard keeps it.
  const show = (html) => {
    const focused = middle.contains(document.activeElement) ? document.activeElement.id : '';
    const fresh = new DOMParser().parseFromString(html, 'text/html');
    middle.replaceChildren(...fresh.body.childNodes);
    since = performance.now();
    if (focused) {
      const again = document.getElementById(focused);
      (again || document.getElementById('main')).focus({ preventScroll: true });
    }
  };

  const target = new URL(middle.dataset.live, location.href);
  target.searchParams.set('version', middle.dataset.version);
  const live = new EventSource(target);
  live.addEventListener('open', () => say('live', 'live'));
  live.addEventListener('changed', (e) => { show(e.data); say('live', 'live'); });
  live.addEventListener('failing', () => say('broken', 'the lease store cannot be reached; this is what was known before'));
  live.addEventListener('signed-out', () => { live.close(); location.reload(); });
  live.addEventListener('error', () => {
    if (live.readyState === EventSource.CLOSED) say('broken', 'not live: reload the page');
    else say('broken', 'the connection is lost; trying again');
  });

  middle.addEventListener('click', (e) => {
    const link = e.target.closest('a.revoke');
    if (!link || e.ctrlKey || e.metaKey || e.shiftKey || !ask.showModal) return;
    e.preventDefault();
    document.getElementById('ask-what').textContent = link.dataset.what;
    document.getElementById('ask-token').value = link.dataset.token;
    ask.showModal();
  });
  document.getElementById('ask-no').addEventListener('click', () => ask.close());
})();
