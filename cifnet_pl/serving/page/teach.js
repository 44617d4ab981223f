// Teach: photos of one class, or a folder or zip file with one sub-folder per class.

import { $, action, changed, count, ENOUGH, finished, make, promised, say, send, takesFiles, takesPasted, thumbnail, waits } from "./page.js";

const SHOWN = 24;
let chosen = []; // {file, path}

function showChosen() {
  const zips = chosen.filter(({ path }) => path.toLowerCase().endsWith(".zip")).length;
  const photos = chosen.length - zips;
  const parts = [photos ? count(photos, "photo") : "", zips ? count(zips, "zip file") : ""];
  $("teach-chosen").textContent = chosen.length ? `Chosen: ${parts.filter(Boolean).join(" and ")}.` : "No photo is chosen.";
  const images = chosen.filter(({ path }) => !path.toLowerCase().endsWith(".zip")).slice(0, SHOWN);
  $("teach-thumbs").replaceChildren(...images.map(({ file, path }) => make("li", {}, thumbnail(file, path))));
  $("teach-more").hidden = photos <= SHOWN;
  $("teach-more").textContent = `and ${photos - SHOWN} more`;
  for (const id of ["teach-learn", "teach-try", "teach-clear"]) $(id).disabled = !chosen.length;
}

function clear() {
  chosen = [];
  showChosen();
}

const rounded = (value) => `${value.toFixed(1)} %`;

function showLesson(lesson) {
  const names = Object.entries(lesson.learned).map(([name, photos]) => `${name} (${photos})`).join(", ");
  const lines = [lesson.version === null ? `Would learn ${names}. Nothing was changed.` : `Learned ${names} in ${lesson.seconds.toFixed(1)} s: version ${lesson.version}.`];
  if (lesson.held_back_photos >= ENOUGH) {
    lines.push(`Photos of these days: ${rounded(lesson.held_back_accuracy)} of ${lesson.held_back_photos} new photos were right before they were learned.`);
  } else {
    lines.push("Too few photos to say how well they would have been answered before.");
  }
  if (lesson.old_accuracy_before !== null) {
    lines.push(`Earlier classes, photos of these days: ${rounded(lesson.old_accuracy_before)} right before, ${rounded(lesson.old_accuracy_after)} after.`);
  } else {
    lines.push("What it costs the earlier classes cannot be measured: this model stores no samples to leave out.");
  }
  for (const [name, value] of Object.entries(promised(lesson.right))) lines.push(`${name}: ${value}.`);
  if (lesson.note) lines.push(lesson.note);
  const place = make("div", { class: "result", role: "status" }, ...lines.map((textContent) => make("p", { textContent })));
  if (lesson.unreadable.length) {
    const items = lesson.unreadable.map(({ file, reason }) => make("li", { textContent: `${file}: ${reason}` }));
    place.append(make("p", { textContent: "Could not be read, and was left out:" }), make("ul", {}, ...items));
  }
  $("lesson").replaceChildren(place);
}

async function teach(dryRun) {
  const name = $("teach-name").value.trim();
  const begin = ({ anyway, instead }) => {
    const form = new FormData();
    for (const { file, path } of chosen) form.append("files", file, path);
    if (instead && !name) throw new Error(`Rename that folder to “${instead}”, or give the photos that name.`);
    if (name) form.append("class_name", instead ?? name);
    return send(`/extend?wait=false&dry_run=${dryRun}${anyway ? "&anyway=true" : ""}`, form, (share) => { bar.value = share; });
  };
  const bar = $("teach-progress");
  $("lesson").replaceChildren();
  $("teach-job").hidden = false;
  let job;
  try {
    $("teach-stage").textContent = "Sending…";
    job = await finished(begin, (now) => {
      $("teach-stage").textContent = now.place ? waits(now) : `Learning: photo ${now.done} of ${now.total ?? "…"}`;
      if (now.total) bar.value = now.done / now.total;
      else bar.removeAttribute("value");
    });
  } finally {
    $("teach-job").hidden = true;
  }
  if (!dryRun) {
    clear();
    $("teach-name").value = ""; // the next photos may be of another class
    await changed();
  }
  showLesson(job.lesson);
}

function take(files) {
  chosen.push(...files);
  showChosen();
}

export function start() {
  takesFiles($("teach-drop"), [$("teach-files"), $("teach-folder")], take);
  takesPasted($("teach"), take);
  action($("teach-form"), "submit", () => teach(false));
  action($("teach-try"), "click", () => teach(true));
  action($("teach-clear"), "click", clear);
  $("teach-form").addEventListener("input", () => say(""));
}
