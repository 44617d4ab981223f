// The frame of the page: tabs, the state in the header, and what is shown anew after a change.

import * as classes from "./classes.js";
import * as inbox from "./inbox.js";
import { $, action, change, count, get, make, say, whenChanged } from "./page.js";
import { startUpload } from "./photos.js";
import { isReadOnly, model, refresh } from "./state.js";
import * as versions from "./versions.js";

const TABS = ["photos", "classes", "versions"];
const PARTS = { photos: inbox, classes, versions };
const POLL = 2000; // milliseconds between two looks at what arrived or was changed elsewhere

const asked = () => TABS.find((name) => location.hash === `#${name}`);

async function open(name) {
  for (const other of TABS) {
    const chosen = other === name;
    $(other).hidden = !chosen;
    $(`tab-${other}`).setAttribute("aria-selected", chosen);
    $(`tab-${other}`).tabIndex = chosen ? 0 : -1;
  }
  entitle();
  if (name !== "photos") await showModel();
  await PARTS[name].show();
}

function entitle() {
  const tab = TABS.find((one) => !$(one).hidden);
  document.title = `${$(`tab-${tab}`).textContent.split(" (")[0]} · ${$("model-name").textContent} · cifnet`;
}

/** Ask for the model, and show it in the frame. */
async function showModel() {
  await refresh();
  const { summary: state, classes, versions } = model;
  $("model-name").textContent = state.name;
  const parts = [count(state.classes, "class", "classes"), count(state.images, "photo"), `version ${state.version}`];
  $("state").textContent = [...parts, ...(state.read_only ? ["read-only"] : [])].join(", ");
  entitle();
  $("undo").disabled = !versions.can_undo;
  $("redo").disabled = !versions.can_redo;
  document.body.classList.toggle("read-only", isReadOnly()); // what changes the model is not shown then
  $("begin").hidden = state.classes > 0 || isReadOnly();
  $("class-names").replaceChildren(...classes.map(({ name }) => make("option", { value: name })));
}

async function showAll() {
  await showModel();
  await inbox.show();
  const name = TABS.find((tab) => !$(tab).hidden);
  if (name !== "photos") await PARTS[name].show();
}

/** Look for photos that arrived and for changes that others made. */
async function poll() {
  if (document.hidden) return;
  const now = await get("/inbox?count=0");
  if (inbox.differs(now, "version")) await showAll();
  else if (inbox.differs(now, "waiting") || inbox.differs(now, "seen") || inbox.differs(now, "names")) await inbox.show();
}

/** Look again and again, each time after an answer: a slow service is not asked twice at a time. */
async function keepLooking() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL));
    await poll().catch(() => {});
  }
}

for (const name of TABS) {
  const tab = $(`tab-${name}`);
  action(tab, "click", () => {
    if (location.hash !== `#${name}`) history.pushState(null, "", `#${name}`);
    return open(name);
  });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = TABS[(TABS.indexOf(name) + step + TABS.length) % TABS.length];
    $(`tab-${next}`).click();
    $(`tab-${next}`).focus();
  });
}
action(window, "hashchange", () => open(asked() ?? "photos")); // Back, or typed
action($("undo"), "click", () => change("/undo", { version: model.versions.current }));
action($("redo"), "click", () => change("/redo", { version: model.versions.current }));
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
