// A photo at its full size: a box drawn on it asks about that part alone.

import { $, action, answerTo, cutOut, keptPhoto } from "./page.js";
import { enlarged } from "./state.js";

/** Show a photo; `take` gets a part of it that is to be kept. */
export function zoom(photo, take) {
  const image = photo.url ? Object.assign(new Image(), { src: photo.url }) : keptPhoto(photo.image, photo.file, false);
  image.id = "zoom-photo";
  $("zoom-photo").replaceWith(image);
  $("zoom-title").textContent = photo.file;
  $("zoom-answer").textContent = "Draw a box to ask about that part.";
  $("zoom-box").hidden = $("zoom-keep").hidden = true;
  const file = photo.file.split(/[\\/]/).at(-1);
  Object.assign(enlarged, { take, name: `part-of-${file.replace(/\.\w+$/, "")}`, part: null });
  $("zoom").showModal();
}

async function ask({ left, top, width, height }) {
  const image = $("zoom-photo");
  $("zoom-answer").textContent = "Looking…";
  const scale = image.naturalWidth / image.clientWidth;
  const [x, y, wide, high] = [left, top, Math.max(1, width), Math.max(1, height)].map((value) => value * scale);
  enlarged.part = await cutOut(image, x, y, Math.max(1, wide), Math.max(1, high), `${enlarged.name}-${Math.round(x)}-${Math.round(y)}.jpg`);
  $("zoom-answer").textContent = (await answerTo(enlarged.part)).slice(0, 2).join(" ");
  $("zoom-keep").hidden = false;
}

export function start() {
  const frame = $("zoom-frame");
  const box = $("zoom-box");
  let from = null;
  const place = (event) => {
    const { left, top, width, height } = frame.getBoundingClientRect();
    return [Math.min(Math.max(event.clientX - left, 0), width), Math.min(Math.max(event.clientY - top, 0), height)];
  };
  const drawnTo = ([x, y]) => {
    const [width, height] = [Math.abs(x - from[0]), Math.abs(y - from[1])];
    return { left: Math.min(x, from[0]), top: Math.min(y, from[1]), width, height };
  };
  frame.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    frame.setPointerCapture(event.pointerId);
    from = place(event);
  });
  frame.addEventListener("pointermove", (event) => {
    if (!from) return;
    for (const [key, value] of Object.entries(drawnTo(place(event)))) box.style[key] = `${value}px`;
    box.hidden = false;
  });
  frame.addEventListener("pointerup", (event) => {
    const drawn = drawnTo(place(event));
    from = null;
    if (drawn.width > 8 && drawn.height > 8) ask(drawn).catch((error) => { $("zoom-answer").textContent = error.message; });
  });
  action($("zoom-keep"), "click", async () => {
    $("zoom").close();
    await enlarged.take([enlarged.part]);
  });
  action($("zoom-close"), "click", () => $("zoom").close());
}
