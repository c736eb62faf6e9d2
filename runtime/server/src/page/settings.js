// What the server is, what was set, and the key.

let served = null;          // the model's entry in /v1/models
const waiting = new Set();  // what wants a key that its reader was asked for

async function look() {
  let state = "unreachable", className = "bad";
  try {
    const health = await (await fetch("/health")).json();
    state = health.status; className = state === "ok" ? "ok" : ["dead", "hung", "poisoned"].includes(state) ? "bad" : "";
    if (state === "loading" && health.total_bytes) state = `loading ${Math.floor(100 * health.loaded_bytes / health.total_bytes)} %`;
    if (state === "ok") state = `${health.target} · context ${health.stats.context.toLocaleString("en")}`;
    if (!served || served.max_model_len === null) await learn();
  } catch {}
  $("state").textContent = state;
  $("dot").className = "dot " + className;
  setTimeout(look, className === "ok" ? 15000 : 1000);
}
async function learn() {
  const [models, info] = await Promise.all([api("/v1/models"), api("/info")]);
  if (models.status === 401) return askKey(learn);
  if (!models.ok || !info.ok) return;
  served = (await models.json()).data[0];
  const { build, engine } = await info.json();
  served.reasons = build.reasoning !== null;
  served.sees = build.vision !== null;
  // What the model looks at of a picture, once it is known how many tokens that may be.
  served.pixels = engine?.images && engine.images.max_tokens * (build.vision.patch * build.vision.merge) ** 2;
  $("attach").hidden = !served.sees;
  $("model").textContent = served.id;
  document.title = served.id;
  showSettings();
}

// ---- the key ----
// Asks for a key, and then does what wanted one.
function askKey(then) {
  waiting.add(then);
  if ($("key-ask").open) return;
  $("key-wrong").hidden = !settings.key;
  $("key-given").value = "";
  $("key-ask").returnValue = "";
  $("key-ask").showModal();
}
$("key-ask").onclose = () => {
  const those = new Set([learn, ...waiting]), key = $("key-given").value.trim();
  waiting.clear();
  if ($("key-ask").returnValue !== "take" || !key) return;
  changeSettings({ key });
  for (const it of those) it();
};
$("key-cancel").onclick = () => $("key-ask").close();

// ---- settings ----
function showSettings() {
  const sampling = served?.sampling;
  const slider = (id, set, usual) => {
    $(id).value = set ?? usual;
    $(id + "-shown").textContent = Number($(id).value).toFixed(2) + (set === undefined ? " (the model’s)" : "");
  };
  $("system").value = settings.system || "";
  slider("temperature", settings.temperature, sampling?.temperature ?? 1);
  slider("top-p", settings.topP, sampling?.top_p ?? 1);
  $("max-tokens").value = settings.maxTokens ?? "";
  if (served?.max_model_len) $("max-tokens").max = served.max_model_len;
  $("effort-row").hidden = served !== null && !served.reasons;
  $("effort").value = settings.effort || "";
  $("key").value = settings.key || "";
}
function changeSettings(change) {
  settings = { ...settings, ...change };
  for (const key of Object.keys(settings)) if (settings[key] === undefined || settings[key] === "") delete settings[key];
  remember("settings", settings);
}
$("open-settings").onclick = () => { showSettings(); $("settings").showModal(); };
$("system").oninput = () => changeSettings({ system: $("system").value });
$("temperature").oninput = () => { changeSettings({ temperature: Number($("temperature").value) }); showSettings(); };
$("top-p").oninput = () => { changeSettings({ topP: Number($("top-p").value) }); showSettings(); };
$("max-tokens").oninput = () => {
  const tokens = parseInt($("max-tokens").value, 10);
  const most = served?.max_model_len || Infinity;
  changeSettings({ maxTokens: tokens > 0 ? Math.min(tokens, most) : undefined });
};
$("effort").onchange = () => changeSettings({ effort: $("effort").value });
$("key").onchange = () => { changeSettings({ key: $("key").value.trim() }); learn(); };
// The key is no matter of taste.
$("reset").onclick = () => { settings = settings.key ? { key: settings.key } : {}; remember("settings", settings); showSettings(); };
$("settings").addEventListener("click", (event) => { if (event.target === $("settings")) $("settings").close(); });

showSettings();
showAll();
if (messages.at(-1)?.role === "user") showFailure("No answer came.");
fit();
look();
