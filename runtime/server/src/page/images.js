// Pictures of questions: chosen, pasted or dropped, shown, and kept in the browser's database, since what keeps the conversation has no room for them.

const SENT_AS_IT_IS = 512 * 1024;   // bytes of a file; larger ones may be made smaller
const READ_BY_SERVERS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const GONE = "(a picture that this browser has not kept)";

let attached = [];                  // names of the next question's pictures
const pictures = new Map();         // data URLs by name

// ---- kept ----
// Databases may be forbidden; then pictures last as long as the page.
const database = new Promise((found) => {
  try {
    const opening = indexedDB.open("monomorph", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("pictures");
    opening.onsuccess = () => found(opening.result);
    opening.onerror = () => found(null);
  } catch { found(null); }
});
const asked = (request) => new Promise((found, failed) => {
  request.onsuccess = () => found(request.result);
  request.onerror = () => failed(request.error);
});
const picturesKept = (async () => {
  try {
    const store = (await database).transaction("pictures").objectStore("pictures");
    const [names, urls] = await Promise.all([asked(store.getAllKeys()), asked(store.getAll())]);
    names.forEach((name, at) => pictures.set(name, urls[at]));
  } catch {}
  for (const shown of document.querySelectorAll("[data-picture]")) shown.replaceWith(pictureShown(shown.dataset.picture));
})();
// Keeps the conversation, the pictures that are in it, and no others.
async function keepConversation() {
  remember("messages", messages);
  const used = new Set(messages.flatMap((message) => message.pictures || []));
  await picturesKept;
  try {
    const store = (await database).transaction("pictures", "readwrite").objectStore("pictures");
    const kept = new Set(await asked(store.getAllKeys()));
    for (const name of kept) if (!used.has(name)) store.delete(name);
    for (const name of used) if (!kept.has(name) && pictures.has(name)) store.put(pictures.get(name), name);
  } catch {}
}

// ---- taken ----
const readUrl = (blob) => new Promise((found, failed) => {
  const reader = new FileReader();
  reader.onload = () => found(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(blob);
});
// The data URL of a file that a server reads: the file's own bytes, unless they are many, or of a kind that only browsers know.
// Such a picture is drawn anew, with at most twice the pixels that the model looks at.
async function pictureUrl(file) {
  const known = READ_BY_SERVERS.includes(file.type);
  if (known && file.size <= SENT_AS_IT_IS) return readUrl(file);
  const image = await createImageBitmap(file), { width, height } = image;
  const most = 2 * (served?.pixels || 1 << 20), scale = Math.min(1, Math.sqrt(most / (width * height)));
  if (known && scale === 1 && file.type !== "image/gif") { image.close(); return readUrl(file); }
  const canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(scale * width));
  canvas.height = Math.max(1, Math.round(scale * height));
  const pen = canvas.getContext("2d");
  // JPEG knows no transparency; the server puts what is transparent on white too.
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return canvas.toDataURL("image/jpeg", .92);
}
async function attach(files) {
  if (!files.length) return;
  if (!served?.sees) return notice(served ? "This model takes no pictures." : "The server has not said yet whether its model takes pictures.");
  for (const file of files) {
    let url;
    try { url = await pictureUrl(file); }
    catch { notice(`${file.name} is no picture that this browser can read.`); continue; }
    const name = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    pictures.set(name, url);
    attached.push(name);
  }
  showAttached();
}

// ---- shown ----
function pictureShown(name) {
  const url = pictures.get(name);
  if (!url) {
    const box = make("span", "picture gone", GONE);
    box.dataset.picture = name;
    return box;
  }
  const box = button("", () => {
    $("picture").src = url;
    $("large").showModal();
  });
  box.className = "picture";
  box.title = "Show it large";
  const image = box.appendChild(make("img"));
  image.src = url;
  image.alt = "Picture";
  return box;
}
function showAttached() {
  $("attached").replaceChildren(...attached.map((name) => {
    const box = make("div", "chosen"), away = button("×", () => { attached = attached.filter((it) => it !== name); showAttached(); });
    away.title = "Leave it out";
    away.setAttribute("aria-label", "Leave this picture out");
    box.append(pictureShown(name), away);
    return box;
  }));
  $("attached").hidden = !attached.length;
  showButtons();
}
// Says something where the usual note stands, for as long as it takes to read.
let noticed = 0;
function notice(text) {
  const note = document.querySelector(".note");
  note.dataset.usual ||= note.textContent;
  note.textContent = text;
  note.classList.add("notice");
  clearTimeout(noticed);
  noticed = setTimeout(() => { note.textContent = note.dataset.usual; note.classList.remove("notice"); }, 8000);
}
// A message's content as it is asked: its pictures, and then what is said of them.
function contentOf({ content, pictures: names }) {
  if (!names?.length) return content;
  const parts = names.map((name) => pictures.has(name)
    ? { type: "image_url", image_url: { url: pictures.get(name) } }
    : { type: "text", text: GONE });
  return content ? [...parts, { type: "text", text: content }] : parts;
}

$("attach").onclick = () => $("file").click();
$("file").onchange = () => { attach([...$("file").files]); $("file").value = ""; };
$("large").onclick = () => $("large").close();
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (!files.length) return;
  event.preventDefault();
  attach(files);
});
// A file that is dropped beside a page's places for it would be opened instead of the page.
const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
for (const kind of ["dragover", "drop", "dragleave"]) document.addEventListener(kind, (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();
  $("ask").classList.toggle("over", kind === "dragover" && Boolean(served?.sees));
  if (kind === "drop") attach([...event.dataTransfer.files]);
});
