/** What the server answers, as JSON; an error carries its `error` text, and how long to wait before the next try. */
async function answer(response) {
  const kind = response.headers.get("content-type") ?? "";
  const body = kind.includes("application/json") ? await response.json().catch(() => ({})) : {};
  if (response.ok) return body;
  const failure = new Error(body.error ?? `The server answers with status ${response.status}.`);
  failure.wait = Number(response.headers.get("retry-after")) || 0;
  throw failure;
}

export async function get(path) {
  return answer(await fetch(path));
}

export async function post(path, fields, signal) {
  const headers = { "content-type": "application/json" };
  return answer(await fetch(path, { method: "POST", headers, body: JSON.stringify(fields), signal }));
}

/** Translate a file; the address of the translation, on this server or in this page. */
export async function postFile(file, fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("file", file);
  const response = await fetch("translate_file", { method: "POST", body: form });
  const found = response.ok && !response.headers.get("content-type")?.includes("application/json");
  if (found) return URL.createObjectURL(await response.blob());
  const { pathname, search } = new URL((await answer(response)).translatedFileUrl, location);
  return pathname + search; // behind a proxy the server may not know the name it is asked by
}

/** A function that runs the given one and drops what an earlier, slower run would still answer. */
export function latest(ask) {
  let turn = 0, running = new AbortController();
  return async (...given) => {
    const mine = ++turn;
    running.abort();
    running = new AbortController();
    try {
      const found = await ask(running.signal, ...given);
      return mine === turn ? { found } : {};
    } catch (failure) {
      return mine === turn ? { failure } : {};
    }
  };
}
