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

/** Translate a file; the address of the translation, which may hold it. */
export async function postFile(file, fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("file", file);
  const { translatedFileUrl } = await answer(await fetch("translate_file", { method: "POST", body: form }));
  const { protocol, pathname, search } = new URL(translatedFileUrl, location);
  // Behind a proxy the server may not know the name it is asked by.
  return protocol === "data:" ? translatedFileUrl : pathname + search;
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
