// A photo at its full size: a box drawn on it asks about that part alone.

import { $, action, bars, keptPhoto, verdict } from "./page.js";
import { classified, cutOut } from "./photos.js";
import { enlarged } from "./state.js";

/** Show a photo; `take` gets a part of it that is to be kept. */
export function zoom(photo, take) {
  const image = photo.url ? Object.assign(new Image(), { src: photo.url }) : keptPhoto(photo.image, photo.file, false);
  image.id = "zoom-photo";
  $("zoom-photo").replaceWith(image);
  $("zoom-title").textContent = photo.file;
  $("zoom-answer").textContent = "";
  $("zoom-bars").replaceChildren();
  $("zoom-box").hidden = $("zoom-keep").hidden = true;
  const file = photo.file.split(/[\\/]/).at(-1);
  Object.assign(enlarged, { take, name: `part-of-${file.replace(/\.\w+$/, "")}`, part: null });
  image.addEventListener("load", () => ask(0, 0, image.naturalWidth, image.naturalHeight).catch(failed), { once: true });
  $("zoom").showModal();
}

const failed = (error) => { $("zoom-answer").textContent = error.message; };

/** Ask about a part of the photo, in its own pixels; the part, unless another one was asked about meanwhile. */
async function ask(x, y, width, height) {
  const part = await cutOut($("zoom-photo"), x, y, width, height, `${enlarged.name}-${Math.round(x)}-${Math.round(y)}.jpg`);
  enlarged.asked = part;
  $("zoom-answer").textContent = "Looking…";
  const answer = await classified(part);
  if (enlarged.asked !== part) return null;
  $("zoom-answer").textContent = verdict(answer).slice(0, 2).filter(Boolean).join(". ");
  $("zoom-bars").replaceChildren(bars(answer));
  return part;
}

async function askAboutBox({ left, top, width, height }) {
  const image = $("zoom-photo");
  const scale = image.naturalWidth / image.clientWidth;
  const [x, y, wide, high] = [left, top, width, height].map((value) => value * scale);
  enlarged.part = await ask(x, y, Math.max(1, wide), Math.max(1, high));
  $("zoom-keep").hidden = !enlarged.part;
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
    if (drawn.width > 8 && drawn.height > 8) askAboutBox(drawn).catch(failed);
  });
  action($("zoom-keep"), "click", async () => {
    $("zoom").close();
    await enlarged.take([enlarged.part]);
  });
  action($("zoom-close"), "click", () => $("zoom").close());
}
