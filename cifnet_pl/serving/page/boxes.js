// A box for each class: photos that are dropped on it, chosen or taken for it get its name.

import { open } from "./camera.js";
import { $, action, make, named, takesFiles } from "./page.js";
import { boxes, inbox, model } from "./state.js";

function box(name, take) {
  const learned = model.classes.find((one) => one.name === name)?.images ?? 0;
  const waiting = Object.values(inbox.view.names).filter((one) => one === name).length;
  const files = make("input", { type: "file", accept: "image/*,.heic,.heif,.zip", multiple: true, "aria-label": `Photos of ${name}` });
  const camera = make("button", { type: "button", class: "plain", textContent: "Camera", "aria-label": `Camera for ${name}` });
  const row = make("div", { class: "row" }, make("label", { class: "button plain" }, "Photos", files), camera);
  const made = make("li", { class: "card drop", "aria-label": name }, named(name), make("p", { class: "hint", textContent: `${learned} learned, ${waiting} waiting` }), row);
  takesFiles(made, [files], (photos) => take(photos, name), made);
  action(camera, "click", () => open(name));
  return made;
}

/** Show the boxes of all classes that are known or named; `take` gets the photos of a box and its name. */
export function showBoxes(take) {
  if (!$("boxes").open) return;
  const names = [...new Set([...model.classes.map((one) => one.name), ...Object.values(inbox.view.names), ...boxes.added])];
  $("box-list").replaceChildren(...names.map((name) => box(name, take)));
}

export function startBoxes(take) {
  action($("boxes"), "toggle", () => showBoxes(take));
  action($("box-form"), "submit", () => {
    boxes.added.push($("box-name").value.trim());
    $("box-name").value = "";
    showBoxes(take);
  });
}
