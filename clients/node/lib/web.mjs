import web from './web.cjs';

export const { onceRoute, SHARED } = web;
