import express from './express.cjs';

export const { onceExpress, SHARED } = express;
