// The view for the till: the camera large, the answer large, and tiles to tap.

import { openCamera, shot, steady, watch } from "./camera.js";
import {
  $, action, alternatives, attempt, bar, button, certain, change, count, get, known, make, named, onClick, onName, percent, post,
  say, short, takesBack, verdict,
} from "./page.js";
import { classified, startUpload, store, waitingOf } from "./photos.js";
import { camera, isReadOnly, model, refresh, till } from "./state.js";

const DAYS = 30;

/** What is said of an answer: the class, or that it is not known. */
function wordsOf(answer) {
  if (!answer) return "No answer";
  if (known(answer)) return answer.classes[0].name;
  return answer.known === false ? "Not known" : verdict(answer)[0];
}

/** Show an answer with the other classes that it could be; or why there is none. */
function showAnswer(answer, reason = "") {
  const isKnown = answer !== null && known(answer);
  const isUnsure = isKnown && !certain(answer);
  $("till-answer").className = !isKnown ? "unknown" : isUnsure ? "unsure" : "";
  const others = isUnsure ? alternatives(answer).slice(0, 3).join(", ") : "";
  const remark = isUnsure ? `Not sure${others && `: or ${others}`}` : reason;
  const share = isKnown ? make("small", {}, short(answer.classes[0].probability)) : "";
  const text = make("span", {}, named(wordsOf(answer)), make("small", { className: "clamp" }, remark));
  $("till-answer").replaceChildren(text, share);
}

const counted = async (counts, back = false) => showDays(await post(`/days?back=${back}`, counts));

function showTiles(answer) {
  const tiles = answer.classes.slice(0, 3).map(({ name, probability }) => {
    const tile = button(named(name), `It is ${name}`, () => decide(name), "");
    if (known(answer)) bar(tile, probability).append(make("small", {}, short(probability)));
    return tile;
  });
  $("till-tiles").replaceChildren(...tiles);
  $("till-tiles").hidden = $("till-form").hidden = false;
}

/** Ask about one photo, and wait for a tap. */
async function ask(photo) {
  const own = { photo, answer: null };
  till.asked = own;
  $("till-photo").src = URL.createObjectURL(photo.file);
  $("till-photo").hidden = false;
  $("till-video").hidden = true;
  $("till-answer").replaceChildren("Looking…");
  try {
    own.answer = steady(await classified(photo));
  } catch (error) {
    if (till.asked === own) next();
    throw error;
  }
  if (till.asked !== own) return;
  showAnswer(own.answer);
  $("till-take").hidden = true;
  $("till-next").hidden = false;
  if (!isReadOnly()) showTiles(own.answer);
}

/** Keep a photo for the next lesson under a name: a sentence, and what can be done about it. */
async function keep(photo, name) {
  const kept = await store([photo]);
  if (kept.unreadable.length) throw new Error(`The photo was not kept: ${kept.unreadable[0].reason}.`);
  const [learned] = kept.known.filter((one) => one.name !== null);
  if (learned) {
    const move = { text: `Move to “${name}”`, work: () => change("/move", { name: learned.name, into: name, images: [learned.image] }, takesBack) };
    return { text: `This photo was learned as “${learned.name}”.`, act: learned.name === name ? null : move };
  }
  const [image] = waitingOf(kept);
  const before = (await get("/inbox?count=0")).names[image] ?? null;
  await post("/inbox/names", { names: { [image]: name } });
  const back = async () => {
    if (kept.images.length) await post("/inbox/remove", { images: kept.images });
    await post("/inbox/names", { names: { [image]: before } });
  };
  return { text: `Kept as “${name}”; it is learned with the next lesson.`, back };
}

/** A tap says what it is: a wrong answer is corrected, and its photo kept. It can be taken back. */
async function decide(name) {
  const { photo, answer } = till.asked ?? {};
  if (!answer) return; // it was tapped twice
  next();
  const right = known(answer) && answer.classes[0]?.name === name;
  const counts = { asked: 1, unsure: certain(answer) ? 0 : 1, corrected: right ? 0 : 1 };
  const { text, act, back } = right && !$("till-keep").checked ? { text: `“${name}” was right.` } : await keep(photo, name);
  await counted(counts);
  const takeBack = async () => {
    await back?.();
    await counted(counts, true);
    say("Taken back.", true);
  };
  say(text, true, act ?? { text: "Take back", work: takeBack });
}

/** Go on. Where nobody tapped, nobody said whether it was right, so it is not counted. */
function next() {
  till.asked = null;
  URL.revokeObjectURL($("till-photo").src);
  $("till-photo").hidden = $("till-tiles").hidden = $("till-form").hidden = $("till-next").hidden = true;
  $("till-take").hidden = $("till-video").hidden = !camera.stream;
  $("till-name").value = "";
  if (camera.stream) watch($("till-video"), () => Boolean(camera.stream) && !till.asked, showAnswer);
  else $("till-answer").replaceChildren("Take a photo");
}

function showDays(days) {
  const right = ({ asked: all, corrected }) => (all ? Math.max(0, 1 - corrected / all) : 0);
  const today = days.at(-1);
  $("today").textContent = today ? `${today.date.slice(5)}: ${count(today.asked, "photo")}, ${today.unsure} unsure, ${today.corrected} corrected, ${percent(right(today), 0)} right` : "";
  $("till-days").replaceChildren(...days.slice(-DAYS).map((day) => {
    const bar = make("span", { className: "bar" });
    bar.style.height = `${100 * right(day)}%`;
    const label = `${day.date}: ${percent(right(day), 0)} of ${day.asked} right, ${day.unsure} unsure`;
    return make("span", { className: "day", title: label, role: "img", ariaLabel: label }, bar);
  }));
}

async function take() {
  const video = $("till-video");
  if (till.asked || !video.videoWidth) return;
  await ask(await shot(video, `till-${Date.now()}.jpg`));
}

async function start() {
  await refresh();
  document.title = `Till · ${model.summary.name} · cifnet`;
  showDays(await get("/days"));
  try {
    await openCamera($("till-video"));
  } catch {
    $("till-choose").hidden = false; // browsers allow the camera on this machine and over HTTPS only
  }
  next();
}

onClick("till-take", take);
onClick("till-video", take);
onClick("till-next", next);
onName($("till-form"), decide);
action($("till-file"), "change", async () => {
  const [file] = $("till-file").files;
  if (file) await ask({ file, path: file.name });
  $("till-file").value = "";
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, button, summary")) return;
  if (event.key === " ") attempt(till.asked ? next : take);
  const tile = $("till-tiles").children["123".indexOf(event.key)];
  if (till.asked && !$("till-tiles").hidden && tile) tile.click();
});
startUpload();
attempt(start);
