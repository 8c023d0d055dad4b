// Shapes, so that a state is more than its colour.
import { html } from "./vendor/preact.js";

const shapes = {
  running: html`<circle cx="8" cy="8" r="5.5" /><path d="M8 4.8V8l2.2 1.6" />`,
  overdue: html`<path d="M8 2.2 14.2 13.3H1.8Z" /><path d="M8 6.4v3.2M8 11.4v.1" />`,
  lapsed: html`<circle cx="8" cy="8" r="5.5" stroke-dasharray="2.4 2.2" />`,
  unknown: html`<path d="M5 5.6a3 3 0 1 1 4.6 2.5C8.5 8.8 8 9.300 8 10.300M8 13v.1" />`,
  failed: html`<path d="m4 4 8 8M12 4l-8 8" />`,
  completed: html`<path d="m3 8.600 3.300 3.300L13 4.600" />`,
  released: html`<path d="M4.200 5.600A5 5 0 1 1 3 8.900M4.100 2.400v3.300h3.300" />`,
  expired: html`<path d="M4.500 2.500h7M4.500 13.500h7M5 2.500c0 4 6 7 6 11M11 2.500c0 4-6 7-6 11" />`,
  search: html`<circle cx="7" cy="7" r="4.300" /><path d="m10.300 10.300 3.200 3.200" />`,
  chevron: html`<path d="m4 6 4 4 4-4" />`,
  copy: html`<rect x="5.500" y="5.500" width="8" height="8" rx="1.500" /><path d="M10.500 3.500v-1h-8v8h1" />`,
};
shapes.in_progress = shapes.running;

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
  ${shapes[name]}</svg>`;
