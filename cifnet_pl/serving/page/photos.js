// Photos on their way to the service: made small, asked about, and stored a few at a time until the service has them.

import { $, bringForward, count, post } from "./page.js";
import { model, upload } from "./state.js";

const SMALL = 2 ** 18; // bytes up to which a photo is sent as it is
const TOGETHER = 8; // photos that are sent in one request, and as many as are asked about
const BYTES = 2 ** 23; // of one request, unless one file alone has more
const PAUSE = 3000; // milliseconds until what was not sent is sent again
const SLOWEST = 20; // bytes a millisecond below which a connection counts as broken, after a minute
const OF_THE_FILE = [413, 422]; // statuses that say that a file is not taken, however often it is sent

/** Let a picture that has been turned upright not be turned again. */
function setUpright(tiff) {
  const little = tiff.getUint16(0) === 0x4949;
  const first = tiff.getUint32(4, little);
  const entries = tiff.getUint16(first, little);
  for (let at = first + 2; at < first + 2 + 12 * entries; at += 12) {
    if (tiff.getUint16(at, little) === 0x0112) tiff.setUint16(at + 8, 1, little);
  }
}

/** The EXIF data of a JPEG file, such as its time, for upright pixels; nothing where it has none. */
async function exifOf(file) {
  const data = new DataView(await file.slice(0, SMALL).arrayBuffer());
  for (let at = 2; at + 10 < data.byteLength && data.getUint8(at) === 0xff; at += 2 + data.getUint16(at + 2)) {
    const size = data.getUint16(at + 2);
    if (data.getUint8(at + 1) === 0xe1 && data.getUint32(at + 4) === 0x45786966) { // "Exif"
      setUpright(new DataView(data.buffer, at + 10, size - 8));
      return [new Uint8Array(data.buffer, at, size + 2)];
    }
  }
  return [];
}

/** A photo with twice the pixels that the model sees, with its time; what the browser cannot decode goes as it is. */
export async function small({ file, path }) {
  if (file.size <= SMALL || !["image/jpeg", "image/png", "image/webp"].includes(file.type)) return { file, path };
  const picture = await createImageBitmap(file, { imageOrientation: "from-image" }).catch(() => null);
  const scale = picture ? model.summary.photo_side / Math.min(picture.width, picture.height) : 1;
  if (!(scale < 1)) return { file, path };
  const jpeg = await drawn(picture, picture.width, picture.height, scale);
  picture.close();
  const exif = file.type === "image/jpeg" ? await exifOf(file) : [];
  return { file: new File([jpeg.slice(0, 2), ...exif, jpeg.slice(2)], file.name, { type: "image/jpeg" }), path };
}

/** A picture as a JPEG file, scaled; what is transparent is white, as the service reads it. */
function drawn(picture, width, height, scale) {
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.round(width * scale), height: Math.round(height * scale) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", 0.92); });
}

/** What an image or video shows, in its own pixels or scaled, as a file. */
export async function cutOut(shown, width, height, name, scale = 1) {
  const blob = await drawn(shown, width, height, scale);
  return { file: new File([blob], name, { type: "image/jpeg" }), path: name };
}

function formOf(photos) {
  const form = new FormData();
  for (const { file, path } of photos) form.append("files", file, path);
  return form;
}

/** The answers about a few photos that the service does not keep, each with the photo as it was sent. */
async function answered(photos) {
  const sent = await Promise.all(photos.map(small));
  const { images: answers } = await post("/classify?top=1000", formOf(sent));
  return answers.map((answer, i) => ({ ...answer, sent: sent[i].file }));
}

/** The answer about one photo that the service does not keep. */
export const classified = async (photo) => (await answered([photo]))[0];

/** Ask about photos that the service does not keep; `report` gets the answers of a part as soon as they are known. */
export async function ask(photos, report) {
  for (let start = 0; start < photos.length; start += TOGETHER) report(await answered(photos.slice(start, start + TOGETHER)));
}

// ---------------------------------------------------------------------- stored, however often that takes

function show() {
  const left = upload.queue.length;
  bringForward($("upload"));
  $("upload").hidden = !left;
  $("upload-text").textContent = `${upload.total - left} of ${count(upload.total, "file")} stored${upload.trouble ? `, ${left} not sent.` : "…"}`;
  $("upload-trouble").textContent = upload.trouble && `${upload.trouble} What was not sent is sent again by itself; leave this page open.`;
  $("upload-stop").hidden = !upload.trouble;
  $("upload-bar").max = upload.total;
  $("upload-bar").value = upload.total - left;
}

/** The next photos of one batch that are sent together: one alone where something went wrong. */
async function nextPart() {
  const part = [];
  let bytes = 0;
  for (const one of upload.queue.slice(0, upload.trouble ? 1 : TOGETHER)) {
    one.small ??= await small(one);
    const size = one.small.file.size;
    if (part.length && (one.batch !== part[0].batch || one.alone || part[0].alone || bytes + size > BYTES)) break;
    bytes += size;
    part.push(one);
  }
  return { part, signal: AbortSignal.timeout(60000 + bytes / SLOWEST) };
}

/** What became of the first photos of the queue. */
function settle(part, became) {
  const [{ batch }] = part;
  upload.queue.splice(0, part.length);
  for (const kind of ["images", "known", "unreadable"]) batch[kind].push(...became[kind]);
  batch.left -= part.length;
  batch.report(became);
  if (!batch.left) batch.end(batch);
}

const refused = (part, reason) => ({ images: [], known: [], unreadable: part.map(({ path }) => ({ file: path, reason })) });

/** What was stored of photos of which an answer was lost: those that wait since then are new. */
const sinceLost = (received) =>
  ({ ...received, images: waitingOf(received), known: received.known.filter(({ name }) => name !== null) });

async function send({ part, signal }) {
  try {
    const received = await post("/inbox", formOf(part.map((one) => one.small)), signal);
    settle(part, part[0].lost ? sinceLost(received) : received);
    upload.trouble = "";
  } catch (error) {
    part.forEach((one) => { one.lost = error.status === undefined; });
    if (!OF_THE_FILE.includes(error.status)) {
      upload.trouble = error.message;
      show();
      await new Promise((resolve) => {
        upload.wake = resolve;
        setTimeout(resolve, PAUSE);
      });
    } else if (part.length > 1) part.forEach((one) => { one.alone = true; }); // one of them is not taken
    else settle(part, refused(part, error.message));
  }
}

async function sendAll() {
  upload.running = true;
  while (upload.queue.length) {
    const next = await nextPart();
    if (upload.stopped) settle(next.part, refused(next.part, "not sent"));
    else if (next.part[0].small.file.size > model.summary.largest_file) settle(next.part, refused(next.part, "the file is too large"));
    else await send(next);
    show();
  }
  Object.assign(upload, { total: 0, trouble: "", running: false, stopped: false });
}

/** Store photos; ends once the service has said of each that it has it, or does not take it: {images, known, unreadable}.
 * `report` gets the same of each part. */
export function store(photos, report = () => {}) {
  return new Promise((end) => {
    const batch = { images: [], known: [], unreadable: [], left: photos.length, report, end };
    upload.queue.push(...photos.map(({ file, path }) => ({ file, path, batch })));
    upload.total += photos.length;
    show();
    if (!upload.running) sendAll();
  });
}

/** The photos that wait now, of those that were stored. */
export const waitingOf = ({ images, known }) => [...images, ...known.filter(({ name }) => name === null).map(({ image }) => image)];

/** Ask before the page is left while photos are on their way. */
export function startUpload() {
  window.addEventListener("beforeunload", (event) => { if (upload.queue.length) event.preventDefault(); });
  window.addEventListener("online", () => upload.wake());
  $("upload-stop").addEventListener("click", () => {
    upload.stopped = true;
    upload.wake();
  });
}
