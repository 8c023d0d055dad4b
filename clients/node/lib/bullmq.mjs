import bullmq from './bullmq.cjs';

export const { onceProcessor } = bullmq;
