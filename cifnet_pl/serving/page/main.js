// The frame of the page: tabs, the state in the header, and what is shown anew after a change.

import * as classes from "./classes.js";
import * as inbox from "./inbox.js";
import { $, action, change, count, get, onClick, pause, say, whenChanged } from "./page.js";
import { startUpload } from "./photos.js";
import { isReadOnly, model, refresh } from "./state.js";
import * as versions from "./versions.js";

const TABS = ["photos", "classes", "versions"];
const PARTS = { photos: inbox, classes, versions };
const POLL = 2000; // milliseconds between two looks at what arrived or was changed elsewhere

const shown = () => TABS.find((name) => !$(name).hidden);
const asked = () => TABS.find((name) => location.hash === `#${name}`);

async function open(name) {
  for (const other of TABS) {
    const chosen = other === name;
    $(other).hidden = !chosen;
    $(`tab-${other}`).ariaSelected = chosen;
    $(`tab-${other}`).tabIndex = chosen ? 0 : -1;
  }
  if (name !== "photos") await showModel();
  await PARTS[name].show();
}

/** Ask for the model, and show it in the frame. */
async function showModel() {
  await refresh();
  const { summary: state, versions } = model;
  const parts = [count(state.classes, "class", "classes"), count(state.images, "photo"), `version ${state.version}`];
  $("state").textContent = [...parts, ...(state.read_only ? ["read-only"] : [])].join(", ");
  document.title = `${state.name} · cifnet`;
  $("undo").disabled = !versions.can_undo;
  $("redo").disabled = !versions.can_redo;
  document.body.classList.toggle("read-only", isReadOnly()); // what changes the model is not shown then
  $("begin").hidden = state.classes > 0 || isReadOnly();
}

async function showAll() {
  await showModel();
  await inbox.show();
  if (shown() !== "photos") await PARTS[shown()].show();
}

/** Look for photos that arrived and for changes that others made. */
async function poll() {
  if (document.hidden) return;
  const now = await get("/inbox?count=0");
  if (inbox.differs(now, "version")) await showAll();
  else if (["waiting", "seen", "names"].some((what) => inbox.differs(now, what))) await inbox.show();
}

/** Look again and again, each time after an answer: a slow service is not asked twice at a time. */
async function keepLooking() {
  for (;;) {
    await pause(POLL);
    await poll().catch(() => {});
  }
}

for (const name of TABS) {
  onClick(`tab-${name}`, () => {
    if (location.hash !== `#${name}`) history.pushState(null, "", `#${name}`);
    return open(name);
  });
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = $(`tab-${TABS.at((TABS.indexOf(name) + step) % TABS.length)}`);
    next.click();
    next.focus();
  });
}
action(window, "hashchange", () => open(asked() ?? "photos")); // Back, or typed
for (const way of ["undo", "redo"]) onClick(way, () => change(`/${way}`, { version: model.versions.current }));
startUpload();
inbox.start();
classes.start();
versions.start();
whenChanged(showAll);
showAll()
  .then(() => {
    const first = asked() ?? (model.summary.classes && !inbox.waits() ? "classes" : "photos");
    history.replaceState(null, "", `#${first}`);
    return open(first);
  })
  .then(keepLooking)
  .catch((error) => {
    $("state").textContent = "";
    say(error.message);
  });
