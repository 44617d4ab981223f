// The frame of the page: tabs, the state in the header, and what is shown anew after a change.

import * as ask from "./ask.js";
import * as change from "./change.js";
import * as look from "./look.js";
import { $, get, isReadOnly, make, say, whenChanged } from "./page.js";
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
  try {
    await PARTS[name]?.show();
  } catch (error) {
    say(error.message);
  }
}

async function refresh() {
  const [versions, classes, state] = await Promise.all([get("/versions"), get("/classes"), get("/look")]);
  document.title = state.name;
  $("model-name").textContent = state.name;
  $("state").textContent = `${state.classes} classes, ${state.photos} photos, version ${state.version}${state.read_only ? ", read-only" : ""}`;
  $("footer-version").textContent = `${state.head} on ${state.backbone}`;
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
  .catch((error) => {
    $("state").textContent = "";
    say(error.message);
  });
// A file that is dropped beside the drop area must not replace the page.
for (const event of ["dragover", "drop"]) document.addEventListener(event, (occurred) => occurred.preventDefault());
