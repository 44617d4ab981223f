// What was asked stays in this browser, through reloads, until it is cleared: {file, path} of each photo.

const STORE = "asked";

async function store(mode, work) {
  const database = await new Promise((resolve, reject) => {
    const opening = indexedDB.open("cifnet", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { autoIncrement: true });
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
  try {
    const transaction = database.transaction(STORE, mode);
    const asked = work(transaction.objectStore(STORE));
    await new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
    return asked?.result;
  } finally {
    database.close();
  }
}

/** Keep these entries and no others; where the browser keeps nothing, they are lost at the next reload. */
export const keep = (entries) => store("readwrite", (place) => {
  place.clear();
  for (const { file, path } of entries) place.add({ file, path });
}).catch(() => {});

export const kept = () => store("readonly", (place) => place.getAll()).catch(() => []);
