import fastify from './fastify.cjs';

export const { onceFastify, SHARED } = fastify;
