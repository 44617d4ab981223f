// What the page and the till know, in one place: their parts draw from it, and keep nothing themselves.

import { $, get, make, released } from "./page.js";

/** The model that is served, as the service told it last. */
export const model = {
  summary: { read_only: false },
  classes: [],
  versions: { current: 0, versions: [] },
};

/** The photos that wait: as the service told them last, with the names that were given here since (`view.names`: files →
 * classes, not learned yet; the service keeps them for every browser), what is selected, and how they are asked for. */
export const inbox = {
  view: { version: 0, waiting: 0, seen: 0, in_folders: 0, newest: 0, names: {}, images: [] },
  selected: new Set(), // names of files
  after: null, // photos that came after the one with this number are shown first
  surest: false, // whether the photos of the most probable classes come first
  shown: 60, // number of photos that are asked for
  last: null, // the photo that was selected last
  asked: [], // answers to photos that are not kept
  lesson: 0, // the version whose lesson is shown
  sending: Promise.resolve(), // the names that are on their way to the service
};

/** Photos on their way to the service: how many came since all were stored, and what goes wrong now. */
export const upload = { queue: [], total: 0, trouble: "", running: false, stopped: false, wake: () => {} };

/** Names of boxes that were added, of which nothing is known yet. */
export const boxes = { added: [] };

/** The class whose photos are shown, and which of them are selected. */
export const opened = { name: null, selected: new Set() };

/** The camera: what it shows is asked about while it runs; `frames` are its answers of the last second, `left` the number
 * of photos of it that the service does not have yet. */
export const camera = { stream: null, left: 0, stored: 0, frames: [] };

/** The photo that the till asks about, and its answer; null while the camera looks for one. */
export const till = { asked: null };

export const isReadOnly = () => model.summary.read_only;

class Replaced extends Error {}

/** A function that asks and shows. Where it is called again meanwhile, the earlier call shows nothing more and ends with
 * the later one: each answer goes through `still`, which ends the work of a call that was replaced. */
export function latestOnly(work) {
  let asked = 0;
  let latest = null;
  return () => {
    asked += 1;
    const own = asked;
    const still = async (answer) => {
      const found = await answer;
      await released();
      if (own !== asked) throw new Replaced();
      return found;
    };
    latest = work(still).catch((error) => {
      if (error instanceof Replaced) return latest;
      throw error;
    });
    return latest;
  };
}

/** Ask for the model, and let its name be shown, and those of its classes be offered where one is typed. */
export const refresh = latestOnly(async (still) => {
  const asked = [get("/summary"), get("/classes"), get("/versions")];
  [model.summary, model.classes, model.versions] = await still(Promise.all(asked));
  $("model-name").textContent = model.summary.name;
  $("class-names").replaceChildren(...model.classes.map(({ name }) => make("option", { value: name })));
});
