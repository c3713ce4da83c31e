// What the page does beyond being read: it counts down, refreshes its parts, and releases. All that it shows of a user
// comes escaped from the server's template, or goes through textContent.
'use strict';

const refreshEvery = 5000; // ms
const usersEvery = 12; // refreshes: a look at everybody is work for the store
const page = location.origin + location.pathname; // not location.href, which may hold a token
const at = (id) => document.getElementById(id);
const plural = (n) => `${n} ${n === 1 ? 'slot' : 'slots'}`;

document.documentElement.classList.add('scripted-on');

// The server's clock, less the browser's.
let ahead = Date.parse(document.body.dataset.now) - Date.now();

function short(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(seconds / 3600);
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  if (minutes > 0) return `${minutes} min ${seconds % 60} s`;
  return `${seconds} s`;
}

function tick() {
  const now = Date.now() + ahead;
  for (const time of document.querySelectorAll('[data-ago]')) {
    time.textContent = `${short(now - Date.parse(time.dateTime))} ago`;
  }
  for (const time of document.querySelectorAll('[data-left]')) {
    const left = Date.parse(time.dateTime) - now;
    time.textContent = left > 0 ? short(left) : 'expired';
    time.classList.toggle('soon', left < 15000);
  }
}

// swap puts the new part where the old one is, and keeps the focus and how far it was scrolled.
function swap(fresh, id) {
  const before = at(id);
  const after = fresh.getElementById(id);
  if (!before || !after || before.innerHTML === after.innerHTML) return;
  const focused = before.contains(document.activeElement) ? document.activeElement.id : '';
  const left = before.querySelector('.scroll')?.scrollLeft;
  if (before.getAttribute('role') === 'status') {
    before.replaceChildren(...after.childNodes); // the region itself stays, so that a change is read out
  } else {
    before.replaceWith(document.adoptNode(after));
  }
  if (focused) at(focused)?.focus({ preventScroll: true });
  const scroll = at(id).querySelector('.scroll');
  if (left && scroll) scroll.scrollLeft = left;
}

// busy reads or writes something that a refresh would take away.
const busy = () => at('confirm').open || !getSelection().isCollapsed;

let loading = Promise.resolve();
let waiting = 0; // loads that have not ended

// load has the server wait for a part of the page, one after the other. Forced, it also takes away what is being read.
function load(part, forced = false) {
  waiting++;
  loading = loading.then(async () => {
    const user = at('slots')?.dataset.user;
    try {
      const answer = await fetch(`${page}?${user === undefined ? '' : `user=${user}&`}wait=${part}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
      if (!answer.ok || !fresh.body.dataset.now) throw new Error(`it answered ${answer.status}`);
      ahead = Date.parse(fresh.body.dataset.now) - Date.now();
      if (forced || !busy()) for (const id of ['banner', part, 'audit']) swap(fresh, id);
      tick();
      at('stale').hidden = true;
    } catch (problem) {
      at('stale').textContent = `This page could not be refreshed: ${problem.message}. It shows how things were before.`;
      at('stale').hidden = false;
    }
    waiting--;
  });
  return loading;
}

let refreshes = 0;

function refresh() {
  if (document.hidden || busy() || waiting > 0) return; // refreshes don't pile up behind a store that hangs
  load('slots');
  if (++refreshes % usersEvery === 0) load('users');
}

// The dialog.

let order = {};

function ask(button) {
  const { user, shown, count } = at('slots').dataset;
  order = { user, shown, id: button.dataset.id };
  at('confirm-what').textContent = order.id ? `slot ${order.id}` : `all ${plural(Number(count))}`;
  at('confirm-user').textContent = shown;
  at('confirm-problem').hidden = true;
  at('confirm').showModal();
  at('reason').select();
}

function say(text) {
  at('said').textContent = text;
  at('said').focus();
}

async function release(event) {
  event.preventDefault();
  const button = at('confirm-release');
  const body = { reason: at('reason').value };
  if (order.id) body.id = order.id;
  button.disabled = true;
  let result;
  try {
    const answer = await fetch(new URL(`api/release?user=${order.user}`, page), {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'X-Page-Token': document.body.dataset.token },
      body: JSON.stringify(body),
    });
    result = await answer.json();
  } catch (problem) {
    result = { detail: `no answer: ${problem.message}` };
  }
  button.disabled = false;
  if (result.released === undefined) {
    at('confirm-problem').textContent = `Not released: ${result.detail}`;
    at('confirm-problem').hidden = false;
    return;
  }
  at('confirm').close();
  await load('slots', true);
  load('users');
  say(result.detail ?? `Released ${plural(result.released)} of ${order.shown}. Running streams are not cut.`);
}

document.addEventListener('click', (event) => {
  const button = event.target.closest('[data-release]');
  if (button) ask(button);
});
at('confirm-cancel').addEventListener('click', () => at('confirm').close());
at('confirm').querySelector('form').addEventListener('submit', release);
document.addEventListener('visibilitychange', refresh);
setInterval(tick, 1000);
setInterval(refresh, refreshEvery);
tick();
for (const part of ['slots', 'users']) {
  if (at(part)?.querySelector('[data-pending]')) load(part);
}
