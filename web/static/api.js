// Requests to the API: JSON in, JSON out, refusals as ApiError with the field they name.

export class ApiError extends Error {
  constructor(status, { message, code, field, allowed }) {
    super(message);
    Object.assign(this, { status, code, field, allowed });
  }
}

export function get(url, { signal } = {}) {
  return request(url, { signal });
}

export function send(method, url, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  return request(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
}

async function request(url, options) {
  const answer = await fetch(url, { ...options, headers: { Accept: "application/json", ...options.headers } });
  if (answer.status === 204) return null;
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new ApiError(answer.status, body?.error ?? { message: `the server answered ${answer.status}` });
  return body;
}
