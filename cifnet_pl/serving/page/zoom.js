// A photo at its full size, with the probabilities of all classes.

import { $, bars, keptPhoto, verdict } from "./page.js";
import { classified, cutOut } from "./photos.js";

/** Show a photo, and ask about it. */
export function zoom(photo) {
  const image = photo.url ? Object.assign(new Image(), { src: photo.url }) : keptPhoto(photo.image, photo.file, false);
  image.id = "zoom-photo";
  $("zoom-photo").replaceWith(image);
  $("zoom-title").textContent = photo.file;
  const show = (text, ...shown) => {
    if ($("zoom-photo") !== image) return; // another one is enlarged by now
    $("zoom-answer").textContent = text;
    $("zoom-bars").replaceChildren(...shown);
  };
  const ask = async () => {
    const answer = await classified(await cutOut(image, image.naturalWidth, image.naturalHeight, photo.file));
    show(verdict(answer).slice(0, 2).filter(Boolean).join(". "), bars(answer));
  };
  show("Looking…");
  image.addEventListener("load", () => ask().catch((error) => show(error.message)), { once: true });
  $("zoom").showModal();
}
