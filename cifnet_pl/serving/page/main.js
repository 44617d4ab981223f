// The frame of the page: tabs, the state in the header, and what is shown anew after a change.

import * as ask from "./ask.js";
import * as change from "./change.js";
import * as look from "./look.js";
import { $, count, get, isReadOnly, make, say, serves, whenChanged } from "./page.js";
import * as teach from "./teach.js";

const TABS = ["ask", "teach", "look", "change"];
const PARTS = { look, change };
const tabs = () => TABS.filter((name) => name !== "teach" || !isReadOnly());

async function open(name) {
  for (const other of TABS) {
    const chosen = other === name;
    $(other).hidden = !chosen;
    $(`tab-${other}`).setAttribute("aria-selected", chosen);
    $(`tab-${other}`).tabIndex = chosen ? 0 : -1;
  }
  history.replaceState(null, "", `#${name}`);
  entitle();
  try {
    await PARTS[name]?.show();
  } catch (error) {
    say(error.message);
  }
}

function entitle() {
  const tab = TABS.find((one) => !$(one).hidden);
  document.title = `${$(`tab-${tab}`).textContent} · ${$("model-name").textContent} · cifnet`;
}

/** Numbers of the version that is served and of those that it came from. */
function lineOf({ current, versions }) {
  const parents = new Map(versions.map(({ number, parent }) => [number, parent]));
  const found = [];
  for (let number = current; number; number = parents.get(number)) found.push(number);
  return found;
}

async function refresh() {
  const [versions, classes, state] = await Promise.all([get("/versions"), get("/classes"), get("/look")]);
  $("model-name").textContent = state.name;
  $("state").textContent = `${count(state.classes, "class", "classes")}, ${count(state.photos, "photo")}, version ${state.version}${state.read_only ? ", read-only" : ""}`;
  entitle();
  serves(lineOf(versions));
  $("undo").disabled = !versions.can_undo;
  $("redo").disabled = !versions.can_redo;
  document.body.classList.toggle("read-only", state.read_only); // what changes the model is not shown then
  const names = classes.map(({ name }) => name);
  $("class-names").replaceChildren(...names.map((value) => make("option", { value })));
  const old = $("change-old").value;
  $("change-old").replaceChildren(...names.map((name) => make("option", { value: name, textContent: name, selected: name === old })));
}

async function afterChange() {
  await refresh();
  await ask.again();
  const name = TABS.find((tab) => !$(tab).hidden);
  await PARTS[name]?.show();
}

for (const name of TABS) {
  const tab = $(`tab-${name}`);
  tab.addEventListener("click", () => open(name));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const shown = tabs();
    const next = shown[(shown.indexOf(name) + step + shown.length) % shown.length];
    open(next);
    $(`tab-${next}`).focus();
  });
}
ask.start();
teach.start();
look.start();
change.start();
whenChanged(afterChange);
refresh()
  .then(() => open(tabs().includes(location.hash.slice(1)) ? location.hash.slice(1) : "ask"))
  .then(ask.restore)
  .catch((error) => {
    $("state").textContent = "";
    say(error.message);
  });
// A file that is dropped beside the drop area must not replace the page.
for (const event of ["dragover", "drop"]) document.addEventListener(event, (occurred) => occurred.preventDefault());
