// What all parts of the page share: requests, messages, elements, files that were dropped.

const TOKEN = "cifnet-token";

// Whoever scans the address with its token needs not type it.
const given = /^#token=(.+)$/.exec(location.hash);
if (given) {
  localStorage.setItem(TOKEN, decodeURIComponent(given[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

export const $ = (id) => document.getElementById(id);

/** Make an element. Text is always set as text, so names from outside are never read as HTML. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** A hint, as an element of its own. */
export const hint = (text, tag = "p") => make(tag, { className: "hint", textContent: text });

/** Put an element where it is seen: into the open dialog, or above the page. */
export function bringForward(element) {
  const dialog = document.querySelector("dialog[open]");
  if (dialog && !dialog.contains(element)) dialog.append(element);
  if (!dialog && element.parentElement !== document.body) $("main").before(element);
}

const STAYS = 8000; // milliseconds that a good message stays; three times as long where something can be done about it
let going = 0; // the timer that takes it away

/** Say something above the page, with a button for what can be done about it at once: {text, work}. What is good goes
 * after some seconds, so that it covers nothing. */
export function say(text, good = false, act = null) {
  clearTimeout(going);
  bringForward($("message"));
  if (text && good) going = setTimeout(() => say(""), act ? 3 * STAYS : STAYS);
  if ($("message-text").textContent !== text) $("message-text").textContent = text; // what did not change is not read again
  $("message").classList.toggle("good", good);
  $("message").hidden = !text;
  $("message-act").hidden = !act;
  $("message-act").textContent = act?.text ?? "";
  $("message-act").onclick = act && (() => attempt(act.work));
}

/** Do something whose error becomes the message. */
export async function attempt(work, ...args) {
  try {
    await work(...args);
  } catch (error) {
    say(error.message);
  }
}

/** Wait for some milliseconds. */
export const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

export const SILENT = "The service does not answer. Is it still running?";

let pressed = false;
const awaiting = []; // what goes on once nothing is pressed

function release() {
  pressed = false;
  for (const goOn of awaiting.splice(0)) goOn();
}

document.addEventListener("pointerdown", () => { pressed = true; }, { capture: true });
// A click comes right after its release, so what waits goes on after both.
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(release), { capture: true });
for (const end of ["dragend", "blur"]) window.addEventListener(end, release);

/** Wait until no button is held down: where an element is replaced between press and release, no click is told. */
export const released = () => (pressed ? new Promise((resolve) => { awaiting.push(resolve); }) : Promise.resolve());

/** A percentage that stays on one line. */
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}\u00a0%`;

export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

/** Whether a photo is of a known class, as far as the service can tell. */
export const known = (photo) => photo.known !== false && photo.classes.length > 0;

/** Whether one class of it is likely enough, and no other. */
export const certain = (photo) => known(photo) && (photo.prediction_set?.length ?? 1) === 1;

/** The other classes that a photo of a known class may be of. */
export const alternatives = (photo) => (certain(photo) ? [] : photo.prediction_set.filter((name) => name !== photo.classes[0].name));

/** Let the background of an element show a probability as a bar. */
export function bar(element, share) {
  element.classList.add("share");
  element.style.setProperty("--share", `${100 * share}%`);
  return element;
}

/** A probability in whole percent, which are never all of them. */
export const short = (share) => percent(Math.min(share, 0.99), 0);

/** All classes with their probabilities as bars, the most probable first. */
export const bars = ({ classes }) => make("ul", { className: "bars" },
  ...classes.map(({ name, probability }) => bar(make("li", {}, named(name), make("span", {}, short(probability))), probability)));

/** What is said of a photo, a remark on it, and how it looks. */
export function verdict(photo) {
  if (photo.unreadable) return ["Cannot be read", photo.unreadable, "warn"];
  if (photo.seen === false) return ["Not looked at yet", "", ""];
  if (!photo.classes.length) return ["Nothing is known yet", "", ""];
  if (photo.known === false) return ["This looks unlike what I learned.", "", "warn"];
  const [best] = photo.classes;
  const others = alternatives(photo);
  const remark = others.length ? `Or: ${others.join(", ")}` : "";
  return [`${certain(photo) ? "" : "Not sure: "}${best.name} ${short(best.probability)}`, remark, ""];
}

/** An accuracy with the ends of its interval; what is said where there is none. */
export function accuracy(value, ends, none) {
  if (value === null) return none;
  return ends ? `${value.toFixed(0)} % (${ends[0].toFixed(0)} to ${ends[1].toFixed(0)})` : `${value.toFixed(1)} %`;
}

/** Two numbers with two names: right answers on photos of these days, and on photos of another day, which may be off. */
export function promised({ loo_accuracy: these, loo_accuracy_interval: ends, new_group_accuracy: other, new_group_accuracy_interval: others, kind }) {
  const where = kind === "measured" ? "Right on the labelled photos of a new place" : "Right on photos of another day (estimated)";
  const none = { few: "too few photos to say", one_group: "photos of one day only: cannot be told" }[kind] ?? "not estimated";
  return { "Right on photos of these days": accuracy(these, ends, "not estimated"), [where]: accuracy(other, others, none) };
}

/** Fewer photos than these say too little for a percentage. */
export const ENOUGH = 10;

let asking = null;

/** The dialogue that asks for the token, on every page; its field has what was typed. */
function tokenDialog(field) {
  const wrong = localStorage.getItem(TOKEN) !== null;
  const title = wrong ? "The token is wrong: type it again" : "This service asks for a token";
  const label = make("label", { htmlFor: field.id }, "Token");
  const row = make("div", { className: "row" }, make("button", { type: "submit", className: "main" }, "Continue"));
  const form = make("form", { method: "dialog" }, make("h2", { id: "token-title" }, title), label, field, row);
  return make("dialog", { id: "token-dialog", ariaLabel: title }, form);
}

/** Ask for the token, once for all requests that need it at the same time. */
function askForToken() {
  asking ??= new Promise((resolve) => {
    const field = make("input", { id: "token", type: "password", autocomplete: "off" });
    const dialog = tokenDialog(field);
    document.body.append(dialog);
    dialog.addEventListener("close", () => {
      localStorage.setItem(TOKEN, field.value.trim());
      dialog.remove();
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** The answer to a request; an Error with the service's sentence where it refuses. The service may be behind a folder of
 * another server. */
export async function request(path, options = {}) {
  const token = localStorage.getItem(TOKEN);
  const authorization = token ? { Authorization: `Bearer ${token}` } : {};
  const headers = { ...authorization, ...options.headers };
  const answer = await fetch(`.${path}`, { ...options, headers, credentials: "omit" }).catch(() => { throw new Error(SILENT); });
  if ($("message-text").textContent === SILENT) say("");
  if (answer.status === 401) {
    if (token === localStorage.getItem(TOKEN)) await askForToken(); // no one has typed another one meanwhile
    return request(path, options);
  }
  if (!answer.ok) {
    const content = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(content.error || `The service answered with status ${answer.status}.`), { status: answer.status });
  }
  return answer;
}

export const get = async (path) => (await request(path)).json();

export async function post(path, content = {}, signal = null) {
  const sent = content instanceof FormData ? { body: content }
    : { body: JSON.stringify(content), headers: { "Content-Type": "application/json" } };
  return (await request(path, { method: "POST", signal, ...sent })).json();
}

/** What is said of a change that is under way. No message does: those are read out. */
function progressOf({ place, done, total }) {
  if (place) return `Waiting: ${count(place, "change comes", "changes come")} first.`;
  return total !== null && done < total ? `Looking at photo ${done} of ${total}…` : "Learning…";
}

async function ended(job) {
  for (;;) {
    const isOver = job.state === "done" || job.state === "refused";
    $("work").hidden = isOver;
    if (isOver) return job;
    $("work-text").textContent = progressOf(job);
    await pause(250);
    job = await get(`/jobs/${job.job}`);
  }
}

/** Ask before something is done: `choices` are buttons {value, text, kind}; gives the value of one, or "no". */
export function sure(text, choices) {
  const dialog = $("sure");
  $("sure-text").textContent = text;
  const cancel = { value: "no", text: "Cancel" };
  $("sure-choices").replaceChildren(...[...choices, cancel].map(({ value, text: textContent, kind }) =>
    make("button", { value, textContent, className: kind ?? "", autofocus: value === "no" })));
  dialog.returnValue = "no";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}

/** Wait for the end of a change. One that may be a mistake is asked about, and made where it is meant.
 * `begin` asks for it and gives a job; it gets {anyway}, or {instead} with the names that are meant for those given.
 * `labels` are other words for the two ways out.
 */
export async function finished(begin, labels = {}) {
  let job = await ended(await begin({}));
  const names = Object.values(job.instead ?? {});
  if (job.may_be_asked_for || names.length) {
    const use = names.length === 1 ? `Use “${names[0]}”` : `Use the ${names.length} existing names`;
    const choices = names.length ? [{ value: "instead", text: labels.instead ?? use, kind: "main" }] : [];
    if (job.may_be_asked_for) choices.push({ value: "yes", text: labels.yes ?? "Do it anyway", kind: "danger" });
    const choice = await sure(`${job.error}.`, choices);
    if (choice === "no") throw new Error("Nothing was changed.");
    job = await ended(await begin(choice === "yes" ? { anyway: true } : { instead: job.instead }));
  }
  if (job.error) throw new Error(job.error);
  return job;
}

/** Do something when an event occurs, in place of what the browser would do: its error becomes the message. */
export function action(element, event, work) {
  element.addEventListener(event, (occurred) => {
    occurred.preventDefault();
    say("");
    return attempt(work, occurred);
  });
}

/** Do something when the element with an id is clicked. */
export const onClick = (id, work) => action($(id), "click", work);

/** Do something with the name that is typed in a form. */
export function onName(form, work) {
  action(form, "submit", () => {
    const name = form.querySelector("input").value.trim();
    if (!name) throw new Error("Type a name first.");
    return work(name);
  });
}

/** A small button; `label` is read out. */
export function button(text, label, work, kind = "plain") {
  const made = make("button", { type: "button", className: kind, ariaLabel: label }, text);
  action(made, "click", work);
  return made;
}

/** A name from outside: two lines at most, in its own writing direction; the whole name when it is pointed at. */
export const named = (name, tag = "span") => make(tag, { className: "clamp", dir: "auto", textContent: name, title: name });

/** A table: names of columns, and rows of cells {text or element, class}. On a phone each cell repeats its column. */
export function table(place, columns, rows) {
  const heads = columns.map(({ title, kind = "" }) => make("th", { textContent: title, scope: "col", className: kind }));
  const cellOf = (cell, i) => {
    const { title, bare, kind = "" } = columns[i];
    const made = make("td", { className: kind }, cell);
    if (!bare) made.dataset.column = title;
    return made;
  };
  const lines = rows.map(({ cells, current }) => make("tr", { className: current ? "current" : "" }, ...cells.map(cellOf)));
  place.replaceChildren(make("tr", {}, ...heads), ...lines);
}

const urls = new Map(); // of photos that were fetched, by their paths

/** A photo that the service keeps, small or whole. */
export function keptPhoto(name, alt, small = true) {
  const image = make("img", { alt, draggable: false });
  const show = async () => {
    const path = `/images/${encodeURIComponent(name)}?small=${small}`;
    if (!urls.has(path)) {
      const answer = await request(path);
      urls.set(path, URL.createObjectURL(await answer.blob()));
    }
    if (urls.size > 2000) { // the oldest of them
      const [oldest, url] = urls.entries().next().value;
      URL.revokeObjectURL(url);
      urls.delete(oldest);
    }
    image.src = urls.get(path);
  };
  show().catch(() => image.replaceWith(make("span", { className: "no-preview hint" }, "no preview")));
  return image;
}

async function filesOf(entry, folder) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [{ file, path: folder + file.name }];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!part.length) return found;
    for (const inner of part) found.push(...(await filesOf(inner, `${folder}${entry.name}/`)));
  }
}

const SYSTEM_FOLDERS = ["__macosx", "@eadir", "@recently-snapshot", "@recycle", "#recycle", "#snapshot", "$recycle.bin",
  "recycler", "lost+found", "system volume information"]; // as images/files.py has them
const isHidden = ({ path }) =>
  path.split("/").some((part) => part.startsWith(".") || SYSTEM_FOLDERS.includes(part.toLowerCase()));
const listed = (files) => [...files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));

/** Call `take` with photos that are pasted. */
export function takesPasted(take) {
  document.addEventListener("paste", (event) => {
    const files = listed(event.clipboardData.files);
    if (files.length) attempt(take, files);
  });
}

/** Call `take` with [{file, path}] for everything that is dropped on `place`, while `mark` shows that, or chosen. */
export function takesFiles(place, inputs, take, mark) {
  const takeShown = (files) => take(files.filter((one) => !isHidden(one)));
  const over = (on) => (event) => {
    event.preventDefault();
    event.stopPropagation(); // a place within another takes it
    mark.classList.toggle("over", on);
  };
  place.addEventListener("dragover", over(true));
  place.addEventListener("dragleave", over(false));
  action(place, "drop", async (event) => {
    event.stopPropagation();
    mark.classList.remove("over");
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    const files = listed(event.dataTransfer.files);
    const found = entries.length ? (await Promise.all(entries.map((entry) => filesOf(entry, "")))).flat() : files;
    await takeShown(found);
  });
  for (const input of inputs) {
    action(input, "change", async () => {
      const files = listed(input.files);
      input.value = "";
      await takeShown(files);
    });
  }
}

export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = make("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

let showModel = async () => {};
/** Set the function that shows the model anew in all parts of the page. */
export const whenChanged = (show) => { showModel = show; };

/** Show the changed model in all parts of the page, and only then say so: whoever reads it acts on what is shown. */
export async function changed(text, act = null) {
  try {
    await showModel();
    if (document.activeElement === document.body) $("main").focus({ preventScroll: true }); // what had the focus is gone
  } catch (error) {
    say(`${text} The page could not be refreshed: ${error.message}`);
    return;
  }
  say(text, true, act);
}

/** Ask for a change; `done` is called before the page shows it, when what was typed for it is no longer needed. */
export async function change(path, content, act = null, done = () => {}) {
  const begin = ({ anyway, instead }) => (instead
    ? post("/move?wait=false", { name: content.old, ...content, into: Object.values(instead)[0] })
    : post(`${path}?wait=false${anyway ? "&anyway=true" : ""}`, content));
  const labels = path === "/rename" ? { instead: "Join both", yes: "Keep both" } : {};
  const refused = (error) => showModel().finally(() => { throw error; }); // what the page shows may be old
  const { change: made } = await finished(begin, labels).catch(refused);
  done();
  await changed(`${made.message[0].toUpperCase()}${made.message.slice(1)}. Version ${made.version} is served.`, act && act(made.version));
}

/** A button at the end of a message that takes its change back, unless another came after it. */
export const takesBack = (version) => ({ text: `Undo version ${version}`, work: () => change("/undo", { version }) });
