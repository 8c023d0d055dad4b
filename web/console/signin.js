// Sign-in: with the token. A one-time link needs no screen, unless it was refused.
import { html, useState } from "./vendor/preact.js";
import { sign_in } from "./api.js";

export function SignIn({ refusal, onSession }) {
  const [error, set_error] = useState(refusal);
  const [busy, set_busy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    const field = event.currentTarget.elements.token;
    set_busy(true);
    try {
      onSession(await sign_in({ token: field.value.trim() }));
    } catch (problem) {
      set_error(problem.message);
      set_busy(false);
      field.select();
    }
  };
  return html`<main class="sign-in">
    <form onSubmit=${submit}>
      <h1 tabindex="-1">once</h1>
      <label for="token">The token from your token file</label>
      <input id="token" name="token" type="password" autocomplete="current-password" required autofocus
        aria-describedby=${error ? "sign-in-error" : undefined} />
      ${error && html`<p class="notice is-bad" id="sign-in-error" role="alert">${error}</p>`}
      <button class="primary" disabled=${busy}>Sign in</button>
      <p class="muted">The program says at its start where that file is. Of <code>once console</code>, take the link that it prints.</p>
    </form>
  </main>`;
}
