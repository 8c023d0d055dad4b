// Shapes, so that a state is more than its colour.
import { html } from "./vendor/preact.js";

const shapes = {
  running: html`<circle cx="8" cy="8" r="5.5" /><path d="M8 4.8V8l2.2 1.6" />`,
  overdue: html`<path d="M8 2.2 14.2 13.3H1.8Z" /><path d="M8 6.4v3.2M8 11.4v.1" />`,
  lapsed: html`<circle cx="8" cy="8" r="5.5" stroke-dasharray="2.4 2.2" />`,
  unknown: html`<path d="M5 5.6a3 3 0 1 1 4.6 2.5C8.5 8.8 8 9.3 8 10.3M8 13v.1" />`,
  failed: html`<path d="m4 4 8 8M12 4l-8 8" />`,
  completed: html`<path d="m3 8.6 3.3 3.3L13 4.6" />`,
  released: html`<path d="M4.2 5.6A5 5 0 1 1 3 8.9M4.1 2.4v3.3h3.3" />`,
  expired: html`<path d="M4.5 2.5h7M4.5 13.5h7M5 2.5c0 4 6 7 6 11M11 2.5c0 4-6 7-6 11" />`,
  search: html`<circle cx="7" cy="7" r="4.3" /><path d="m10.3 10.3 3.2 3.2" />`,
  pause: html`<path d="M5.5 4v8M10.5 4v8" />`,
  play: html`<path d="M5.5 3.5v9L12 8Z" />`,
  chevron: html`<path d="m4 6 4 4 4-4" />`,
  copy: html`<rect x="5.5" y="5.5" width="8" height="8" rx="1.5" /><path d="M10.5 3.5v-1h-8v8h1" />`,
};
shapes.in_progress = shapes.running;

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
  ${shapes[name]}</svg>`;
