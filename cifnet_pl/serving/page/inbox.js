// Photos that wait: the most doubtful first; named by a key, a click or many at once, and learned in one lesson.

import { showBoxes, startBoxes } from "./boxes.js";
import { takesPictures } from "./camera.js";
import {
  $, attempt, bar, bars, button, certain, change, changed, count, ENOUGH, finished, get, hint, keptPhoto, make,
  named as nameTag, onClick, onName, post, promised, save, say, short, takesBack, takesFiles, takesPasted, verdict,
} from "./page.js";
import { ask, store, waitingOf } from "./photos.js";
import { inbox, isReadOnly, latestOnly } from "./state.js";
import { zoom } from "./zoom.js";

const PAGE = 60; // photos that "Show more" adds
const GROUPED = 2000; // photos that are grouped at once
const { selected } = inbox;

const nameOf = (photo) => inbox.view.names[photo];
const named = () => Object.keys(inbox.view.names);

export const waits = () => inbox.view.waiting > 0;
export const differs = (now, what) => !isReadOnly() && JSON.stringify(now[what]) !== JSON.stringify(inbox.view[what]);

/** Name photos, or take their names back where `name` is null, and show it. */
function give(photos, name) {
  giveEach(Object.fromEntries(photos.map((photo) => [photo, name])));
}

/** Name photos, each as its own: files → names. The service keeps them, after one request the next. */
function giveEach(given) {
  for (const [photo, name] of Object.entries(given)) {
    if (name === null) delete inbox.view.names[photo];
    else inbox.view.names[photo] = name;
    selected.delete(photo);
  }
  if (Object.keys(given).length) inbox.sending = inbox.sending.then(() => attempt(post, "/inbox/names", { names: given }));
  draw();
}

/** Name one photo, and go on to the next that has no name. */
function decide(photo, name) {
  const next = nextAfter(photo);
  give([photo], name);
  (cardOf(next) ?? cardOf(photo))?.focus();
}

/** The next photo without a name after one, or from the beginning. */
function nextAfter(photo, but = new Set()) {
  const cards = [...$("cards").children];
  const at = cards.findIndex((card) => card.dataset.photo === photo);
  const isOpen = (card) => card.dataset.photo !== photo && !nameOf(card.dataset.photo) && !but.has(card.dataset.photo);
  return [...cards.slice(at + 1), ...cards.slice(0, Math.max(at, 0))].find(isOpen)?.dataset.photo;
}

const cardOf = (photo) => [...$("cards").children].find((card) => card.dataset.photo === photo);

function select(photo, range) {
  const order = inbox.view.images.map((one) => one.image);
  const [from, to] = [order.indexOf(range && inbox.last ? inbox.last : photo), order.indexOf(photo)];
  const on = range || !selected.has(photo);
  for (const one of order.slice(Math.min(from, to), Math.max(from, to) + 1)) {
    if (on) selected.add(one);
    else selected.delete(one);
  }
  inbox.last = photo;
  draw();
}

/** The buttons below a photo: its classes, or the name that it was given. */
function foot(photo) {
  const place = make("div", { className: "foot" });
  if (photo.url) {
    place.append(bars(photo));
    return place;
  }
  if (isReadOnly()) return place;
  const name = nameOf(photo.image);
  if (name !== undefined) {
    const back = button("Take back", `Take back the name of ${photo.file}`, () => give([photo.image], null));
    place.append(make("p", { className: "good clamp" }, `Named “${name}”.`), back);
    return place;
  }
  if (photo.folders.length > 1) {
    place.append(make("p", { className: "warn" }, "It lies in several folders. Which is it?"));
    for (const folder of photo.folders) place.append(button(nameTag(folder), `${photo.file} is: ${folder}`, () => decide(photo.image, folder)));
    return place;
  }
  photo.classes.forEach(({ name: one, probability }, i) => {
    const yes = i === 0 && certain(photo);
    const label = yes ? `Yes, ${photo.file} is ${one}` : `${photo.file} is: ${one}`;
    const choice = button(nameTag(yes ? `Yes, ${one}` : one), label, () => decide(photo.image, one), yes ? "plain yes" : "plain");
    choice.append(hint(short(probability), "span"));
    place.append(bar(choice, probability));
  });
  return place;
}

function card(photo) {
  const [text, remark, kind] = verdict(photo);
  const shown = photo.url ? make("img", { src: photo.url, alt: photo.file }) : keptPhoto(photo.image, photo.file);
  const about = { ariaLabel: `Select ${photo.file}`, ariaPressed: selected.has(photo.image), tabIndex: -1 };
  const picture = make("button", { type: "button", className: "picture", ...about }, shown);
  if (photo.image) picture.addEventListener("click", ({ shiftKey }) => select(photo.image, shiftKey));
  const head = make("div", { className: "head", title: photo.file }, nameTag([photo.folder, photo.file.split("/").at(-1)].filter(Boolean).join("/")));
  head.append(button("⤢", `Enlarge ${photo.file}`, () => zoom(photo)));
  const said = make("p", { className: `verdict clamp ${kind}`, textContent: text, dir: "auto" });
  const more = remark ? make("p", { className: "hint clamp", title: remark }, remark) : "";
  const label = `${photo.file}: ${nameOf(photo.image) ?? text}`;
  const made = make("li", { className: "card", tabIndex: 0, ariaLabel: label }, picture, head, said, more, foot(photo));
  if (photo.image) made.dataset.photo = photo.image;
  made.dataset.looks = looksOf(photo);
  made.classList.toggle("selected", selected.has(photo.image));
  made.classList.toggle("named", nameOf(photo.image) !== undefined);
  return made;
}

/** What a card shows: one that would look the same stays as it is, with its focus. */
const looksOf = (photo) => JSON.stringify([photo, nameOf(photo.image), selected.has(photo.image), isReadOnly()]);

function drawCards(photos) {
  const place = $("cards");
  const focused = document.activeElement.closest?.("#cards .card");
  const at = [...place.children].indexOf(focused);
  const before = new Map([...place.children].map((one) => [one.dataset.looks, one]));
  const cards = photos.map((photo) => before.get(looksOf(photo)) ?? card(photo));
  for (const one of [...place.children]) if (!cards.includes(one)) one.remove();
  cards.forEach((one, i) => {
    if (place.children[i] !== one) place.insertBefore(one, place.children[i] ?? null);
  });
  if (focused && !focused.contains(document.activeElement)) (cardOf(focused.dataset.photo) ?? cards[Math.min(at, cards.length - 1)])?.focus();
}

/** Show what is known of the photos that wait, after those that are only asked about. */
function draw() {
  const { asked, view } = inbox;
  drawCards([...asked, ...view.images]);
  showBoxes(take);
  const offer = (id, on, text = "") => {
    $(id).hidden = !on;
    if (text) $(id).textContent = text;
  };
  const open = view.images.filter(({ image: photo }) => !nameOf(photo));
  offer("offers", view.images.length + asked.length > 0);
  offer("keys", view.images.length > 0);
  offer("surest", view.seen > 1, inbox.surest ? "Look at the most doubtful first" : "Look at the surest first");
  offer("by-folder", view.in_folders > 0, `Name ${view.in_folders} by their folders`);
  offer("group", open.length > 1);
  offer("select-all", open.length > 1);
  offer("clear", asked.length > 0);
  offer("more", view.waiting > view.images.length);
  const decided = named().length;
  offer("bar", selected.size + decided > 0);
  offer("name-form", selected.size > 0);
  offer("named-row", decided > 0);
  $("selected").textContent = `${selected.size} selected`;
  $("named").textContent = `${decided} named`;
  $("learn").textContent = `Learn ${decided}`;
  $("tab-photos").textContent = view.waiting ? `Photos (${view.waiting})` : "Photos";
  const looking = !isReadOnly() && view.seen < view.waiting;
  offer("sending", looking, `Looking at photo ${view.seen} of ${view.waiting}…`);
  offer("progress", looking);
  $("progress").max = view.waiting;
  $("progress").value = view.seen;
}

/** Ask for the photos that wait, and show them. */
export const show = latestOnly(async (still) => {
  if (isReadOnly()) return draw();
  const sent = inbox.sending;
  await sent;
  const list = await still(get(`/inbox?count=${inbox.shown}&surest=${inbox.surest}${inbox.after === null ? "" : `&after=${inbox.after}`}`));
  if (sent !== inbox.sending) return show(); // the list may lack what was named meanwhile
  const { images: before, version } = inbox.view;
  if (version !== list.version && inbox.lesson !== list.version) $("lesson").replaceChildren();
  inbox.view = list;
  const here = new Set(list.images.map(({ image: photo }) => photo));
  for (const photo of selected) if (!here.has(photo)) selected.delete(photo);
  if (selected.size + named().length) { // nothing moves away below the hand; what is new comes first
    const place = new Map(before.map(({ image: photo }, i) => [photo, i]));
    list.images.sort((a, b) => (place.get(a.image) ?? -1) - (place.get(b.image) ?? -1));
  }
  return draw();
});

/** Answer photos that are not kept. */
const justAsk = (photos) => ask(photos, (answers) => {
  inbox.asked.unshift(...answers.map((answer) => ({ ...answer, url: URL.createObjectURL(answer.sent) })));
  draw();
});

/** What is said of photos that were stored. */
function arrival({ images, known: others, unreadable }) {
  const why = unreadable.slice(0, 3).map(({ file, reason }) => `${file}: ${reason}`).join("; ");
  const parts = [
    count(images.length, "new photo"),
    others.length ? `${others.length} that wait or were learned already` : "",
    unreadable.length ? `${unreadable.length} left out (${why})` : "",
  ];
  return `${parts.filter(Boolean).join(", ")}.`;
}

/** Send photos to the service, which keeps them until they are decided; they are named where `name` says so. `report`
 * gets what became of each part of them. */
async function take(photos, name = "", report = () => {}) {
  if (!photos.length) return;
  $("tab-photos").click();
  if (isReadOnly() || ($("just-ask").checked && !name)) {
    await justAsk(photos);
    report({ images: [], known: photos, unreadable: [] });
    return;
  }
  inbox.after = inbox.view.newest;
  $("lesson").replaceChildren();
  const stored = await store(photos, (part) => {
    if (name) give(waitingOf(part), name);
    report(part);
  });
  await show();
  const text = arrival(stored);
  const meant = stored.known.map((one) => ({ ...one, into: name || one.folder }));
  const elsewhere = meant.filter((one) => one.name !== null && one.into && one.into !== one.name);
  if (!elsewhere.length) {
    say(text, !stored.unreadable.length);
    return;
  }
  const [{ name: old, into }] = elsewhere;
  const same = elsewhere.filter((one) => one.name === old && one.into === into).map((one) => one.image);
  const asks = `${count(same.length, "photo")} of “${into}” ${same.length === 1 ? "was" : "were"} learned as “${old}”.`;
  say(`${text} ${asks}`, false, { text: `Move to “${into}”`, work: () => change("/move", { name: old, into, images: same }, takesBack) });
}

const bare = (name) => name.normalize("NFKC").toLowerCase().replace(/\s+/g, "");

async function learn(trial) {
  await inbox.sending;
  const { names: now } = await get("/inbox?count=0"); // someone may have renamed a class
  const given = Object.entries({ ...inbox.view.names, ...now }).filter(([photo]) => nameOf(photo));
  const begin = ({ anyway, instead }) => {
    const meant = new Map(Object.entries(instead ?? {}).map(([name, other]) => [bare(name), other]));
    const names = Object.fromEntries(given.map(([photo, name]) => [photo, meant.get(bare(name)) ?? name]));
    return post(`/inbox/learn?wait=false&dry_run=${trial}${anyway ? "&anyway=true" : ""}`, { names });
  };
  $("learn").disabled = $("try").disabled = true;
  try {
    const { update: lesson } = await finished(begin);
    const learned = Object.entries(lesson.learned).map(([name, photos]) => `${name} (${photos})`).join(", ");
    inbox.lesson = lesson.version ?? inbox.view.version;
    showLesson(lesson);
    if (trial) return say(`Would learn ${learned}. Nothing was changed.`, true);
    $("groups").replaceChildren();
    await changed(`Learned ${learned} in ${lesson.seconds.toFixed(1)} s.`, takesBack(lesson.version));
    return $("lesson").focus();
  } finally {
    $("learn").disabled = $("try").disabled = false;
  }
}

const rounded = (value) => `${value.toFixed(0)} %`;

/** One sentence, what comes next, and the rest folded. */
function showLesson(lesson) {
  const { new_images: of, new_accuracy: share, old_accuracy_before: before, old_accuracy_after: after, old_accuracy_interval: ends } = lesson;
  const lost = ends && before !== null && before > ends[1];
  const range = ends ? ` (${ends[0].toFixed(0)} to ${rounded(ends[1])})` : "";
  const old = after === null ? "" : lost ? `What it knew before is right less often: ${rounded(after)}${range}, ${rounded(before)} before.`
    : `What it knew before is about as often right as it was: ${rounded(after)}${range}.`;
  const rest = [of < ENOUGH ? "Too few new photos to say how well they would have been answered."
    : `${rounded(share)} of ${of} new photos, left out to test it, were right.`];
  rest.push(...Object.entries(promised(lesson.accuracy)).map(([name, value]) => `${name}: ${value}.`), ...lesson.warnings);
  rest.push(...lesson.unreadable.map(({ file, reason }) => `${file} was left out: ${reason}.`));
  const folded = make("details", {}, hint("More", "summary"), ...rest.map((textContent) => make("p", { textContent })));
  const lines = [old, lesson.next_step].filter(Boolean).map((textContent) => make("p", { textContent }));
  $("lesson").replaceChildren(make("div", { className: "result", role: "status" }, ...lines, folded));
}

function groupCard({ images: photos, suggestion }) {
  const left = new Set(photos);
  const made = $("group-card").content.firstElementChild.cloneNode(true);
  const [about, thumbs, form] = made.children;
  const [field, submit] = form.elements;
  field.value = suggestion ?? "";
  field.ariaLabel = `Class of ${count(photos.length, "photo")}`;
  const showCount = () => {
    about.textContent = `${count(left.size, "photo")} alike. Tap one that is something else.`;
    submit.textContent = `Name ${left.size}`;
  };
  photos.forEach((photo, i) => {
    const item = make("li", {}, button(keptPhoto(photo, ""), `Photo ${i + 1} of ${photos.length} is something else`, () => {
      left.delete(photo);
      item.remove();
      showCount();
      if (!left.size) made.remove();
    }, "thumb"));
    thumbs.append(item);
  });
  showCount();
  onName(form, (name) => {
    give([...left], name);
    made.remove();
    ($("groups").querySelector("input") ?? $("learn")).focus();
  });
  return made;
}

/** Group all photos that wait and have no name. */
async function group() {
  const open = (await all()).filter(({ image, seen }) => seen && !nameOf(image)).map(({ image }) => image);
  const alike = await post("/group", { images: open.slice(0, GROUPED) });
  const groups = alike.filter(({ images: photos }) => photos.length > 1);
  const rest = open.length - groups.flatMap(({ images: photos }) => photos).length;
  const found = hint(`${count(groups.length, "group")}; ${count(rest, "photo")} like no other below.`);
  $("groups").replaceChildren(found, make("ul", { className: "cards" }, ...groups.map(groupCard)));
}

async function remove() {
  const photos = [...selected];
  const back = async () => {
    await post("/inbox/remove?back=true", { images: photos });
    say("");
    await show();
  };
  const next = nextAfter(photos.at(-1), selected);
  await post("/inbox/remove", { images: photos });
  give(photos, null);
  await show();
  (cardOf(next) ?? $("files")).focus();
  say(`Took ${count(photos.length, "photo")} away.`, true, { text: "Put back", work: back });
}

async function all() {
  return isReadOnly() ? inbox.asked : (await get(`/inbox?count=${inbox.view.waiting}`)).images;
}

const cell = (value) => {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text; // a spreadsheet must not run a file's name
  return `"${safe.replaceAll('"', '""')}"`;
};

async function csv() {
  const rows = (await all()).map(({ file, classes: [best], ...photo }) => [
    cell(file), cell(photo.known === false ? "" : best?.name), cell(best?.name), best ? best.probability.toFixed(6) : "",
    cell(photo.known), photo.novelty ?? "", photo.p_value ?? "", cell(photo.prediction_set?.join("; ")), cell(photo.unreadable),
  ].join(","));
  const columns = "file,class,closest,probability,known,novelty,p_value,answers,unreadable";
  save("answers.csv", new Blob([[columns, ...rows].join("\n") + "\n"], { type: "text/csv" }));
}

function pressed(event) {
  const photo = inbox.view.images.find((one) => one.image === event.target.dataset.photo);
  if (!photo || isReadOnly() || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  const place = key === "y" && certain(photo) ? 0 : "123".indexOf(key);
  const chosen = photo.classes[place]?.name;
  if (chosen) decide(photo.image, chosen);
  else if (key === "y") say("Not sure, or unlike what I learned: press 1, 2 or 3 for one of its names, or N for another.");
  else if (key === " ") select(photo.image, event.shiftKey);
  else if (key === "delete" || key === "n") {
    if (!selected.has(photo.image)) select(photo.image, false);
    if (key === "delete") attempt(remove);
    else $("name").focus();
  } else return;
  event.preventDefault();
}

export function start() {
  takesFiles(document.body, [$("files"), $("folder"), $("camera-file")], take, $("drop"));
  takesPasted(take);
  takesPictures(take);
  startBoxes(take);
  $("cards").addEventListener("keydown", pressed);
  onClick("surest", () => {
    inbox.surest = !inbox.surest;
    inbox.after = null;
    inbox.view.images = []; // in the new order
    return show();
  });
  onClick("by-folder", async () => {
    const open = (await all()).filter(({ image, folder }) => folder && !nameOf(image));
    giveEach(Object.fromEntries(open.map(({ image, folder }) => [image, folder])));
    await show();
  });
  onClick("group", group);
  onClick("select-all", () => {
    for (const { image: photo } of inbox.view.images) if (!nameOf(photo)) selected.add(photo);
    draw();
  });
  onClick("csv", csv);
  onClick("clear", () => {
    inbox.asked.splice(0).forEach(({ url }) => URL.revokeObjectURL(url));
    draw();
  });
  onClick("more", () => {
    inbox.shown += PAGE;
    return show();
  });
  onName($("name-form"), (name) => {
    const order = inbox.view.images.map((one) => one.image).filter((photo) => selected.has(photo));
    const next = nextAfter(order.at(-1), selected);
    give([...selected], name);
    $("name").value = "";
    (cardOf(next) ?? $("learn")).focus();
  });
  onClick("remove", remove);
  onClick("select-none", () => {
    selected.clear();
    draw();
  });
  onClick("learn", () => learn(false));
  onClick("try", () => learn(true));
  onClick("take-back", () => give(named(), null));
}
